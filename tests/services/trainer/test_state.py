"""What a checkpoint holds, and when it is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.errors import BadInputError
from common.messages import Cursor
from common.status import Counters
from services.trainer.position import StreamPosition
from services.trainer.state import TrainState, WindowedMean
from workloads.base.batch import Batch

CPU = torch.device("cpu")
AUDIT = "audit.jsonl"


POSITION = StreamPosition(
    cursor=Cursor(1, 2, 3, 4), epoch=1, counters=Counters(events_read=5, events_trained=5), skipped_units=(2,)
)


class CountingTask:
    """The smallest task: it counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, batch: Batch) -> dict[str, Tensor]:
        del batch
        self.steps += 1
        return {"w_gap": torch.zeros(())}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def saved() -> dict[str, Any]:
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    state.step, state.seconds, state.position, state.audit_bytes = 6, 1.5, POSITION, {AUDIT: 77}
    state.task.load_state_dict({"steps": 6})
    state.recent.add(torch.tensor(2.0))
    torch.manual_seed(5)
    return state.checkpoint("{}")


def test_everything_that_training_goes_on_from_comes_back() -> None:
    checkpoint = saved()
    expected = torch.rand(3)
    torch.manual_seed(99)
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    state.restore(checkpoint)
    assert (state.step, state.seconds, state.audit_bytes, state.position) == (6, 1.5, {AUDIT: 77}, POSITION)
    assert state.task.state_dict() == {"steps": 6}
    assert float(state.recent.mean()) == 2.0
    assert torch.equal(torch.rand(3), expected), "the random numbers go on, too"


def test_a_new_plan_that_is_asked_for_keeps_weights_and_counts_and_begins_the_stream() -> None:
    state = TrainState(CountingTask(), CPU, "plan B", headline="w_gap")
    state.restore(saved())
    assert state.step == 6
    assert state.position == StreamPosition(counters=POSITION.counters)


@pytest.mark.parametrize("change", [{"position": "{}}"}, {"position": '{"gone": 1}'}, {"audit_bytes": [77]}])
def test_a_checkpoint_of_another_version_is_refused(change: dict[str, Any]) -> None:
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    with pytest.raises(BadInputError, match="step 6 was written by another version of icestream: use --fresh"):
        state.restore(saved() | change)


VALUES = np.random.default_rng(1).normal(3, 100, 50).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 50, 80])
def test_it_is_the_mean_of_the_last_values(size: int) -> None:
    window = WindowedMean(size, CPU)
    assert float(window.mean()) == 0
    for count, value in enumerate(VALUES, start=1):
        window.add(torch.tensor(value))
        expected = VALUES[max(0, count - size) : count].astype(np.float64).mean()
        assert float(window.mean()) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_a_value_that_is_not_finite_counts_until_it_leaves_the_window() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        window = WindowedMean(3, CPU)
        for value in (1.0, bad, 2.0, 3.0):
            window.add(torch.tensor(value))
        assert math.isnan(float(window.mean()))
        window.add(torch.tensor(7.0))
        assert float(window.mean()) == 4.0


def test_it_goes_on_from_a_checkpoint_to_the_bit() -> None:
    window, resumed = WindowedMean(7, CPU), WindowedMean(7, CPU)
    for value in VALUES[:20]:
        window.add(torch.tensor(value))
    state: dict[str, Tensor | int] = {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in window.state_dict().items()
    }
    resumed.load_state_dict(state)
    for value in VALUES[20:]:
        window.add(torch.tensor(value))
        resumed.add(torch.tensor(value))
        assert torch.equal(window.mean(), resumed.mean())
