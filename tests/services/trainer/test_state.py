"""What a checkpoint holds, and when it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import BadInputError
from common.messages import Cursor
from common.status import Counters
from services.trainer.state import TrainState
from services.trainer.stream.position import StreamPosition
from workloads.base.batch import Batch

CPU = torch.device("cpu")
POSITION = StreamPosition(
    cursor=Cursor(1, 2, 3, 4),
    epoch=1,
    counters=Counters(events_read=5, events_trained=5),
    skipped_units=(2,),
)


class CountingTask:
    """The smallest task: it counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, batch: Batch) -> dict[str, Tensor]:
        del batch
        self.steps += 1
        return {"w_gap": torch.zeros(())}

    def observed(self, metrics: Mapping[str, float]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def saved() -> dict[str, Any]:
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    state.step, state.seconds, state.position, state.audit_bytes = 6, 1.5, POSITION, (77, 5)
    state.task.load_state_dict({"steps": 6})
    state.recent.add(torch.tensor(2.0))
    torch.manual_seed(5)
    return state.checkpoint("{}")


def test_everything_that_training_goes_on_from_comes_back() -> None:
    checkpoint = saved()
    expected = torch.rand(3)
    torch.manual_seed(99)
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    state.restore(checkpoint, accept_new_plan=False)
    assert (state.step, state.seconds, state.audit_bytes, state.position) == (6, 1.5, (77, 5), POSITION)
    assert state.task.state_dict() == {"steps": 6}
    assert float(state.recent.mean()) == 2.0
    assert torch.equal(torch.rand(3), expected), "the random numbers go on, too"


def test_a_checkpoint_of_another_plan_is_refused_with_the_ways_out() -> None:
    state = TrainState(CountingTask(), CPU, "plan B", headline="w_gap")
    with pytest.raises(BadInputError, match=r"another plan .*--new-plan.*--fresh"):
        state.restore(saved(), accept_new_plan=False)


def test_a_new_plan_that_is_asked_for_keeps_weights_and_counts_and_begins_the_stream() -> None:
    state = TrainState(CountingTask(), CPU, "plan B", headline="w_gap")
    state.restore(saved(), accept_new_plan=True)
    assert state.step == 6
    assert state.position == StreamPosition(counters=POSITION.counters)


def test_weights_of_another_model_are_refused_in_one_line() -> None:
    checkpoint = saved() | {"task": {}}
    state = TrainState(CountingTask(), CPU, "plan A", headline="w_gap")
    with pytest.raises(BadInputError, match="weights of step 6 fit no network of this configuration") as error:
        state.restore(checkpoint, accept_new_plan=False)
    assert "\n" not in str(error.value)
