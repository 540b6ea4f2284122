"""What is measured beside the training."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.status import TrainerStatus
from services.config.trainer import TrainerConfig
from services.trainer.speed import gauges as module
from services.trainer.speed.gauges import Gauges
from services.trainer.speed.pace import START_UP_STEPS
from services.trainer.speed.profile import WARM_UP_STEPS
from services.trainer.state import TrainState
from workloads.base.batch import Batch, Microbatch

CPU = torch.device("cpu")
BATCH = Batch((Microbatch(0, 0, 0, torch.arange(11), np.arange(11), {}, {}, 10, 10),))


class CountingTask:
    """Counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.steps += 1
        return {}

    def observed(self, metrics: Mapping[str, float]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def trained(gauges: Gauges, steps: int) -> tuple[TrainerStatus, CountingTask]:
    task = CountingTask()
    state = TrainState(task, CPU, "ab" * 16, headline="w_gap")
    for step in range(1, steps + 1):
        gauges.stepped(step, BATCH)
        state.step = step
    return gauges.close(state, TrainerStatus(step=steps), stopped=lambda: False), task


def test_nothing_is_measured_but_the_pace_unless_asked_for(tmp_path: Path) -> None:
    status, task = trained(Gauges(tmp_path, TrainerConfig(), CPU), 20)
    assert status.step == 20
    assert status.session_events_per_s > 0
    assert status.replay_events_per_s == 0
    assert task.steps == 0
    assert not list(tmp_path.iterdir())


def test_a_replay_is_measured_at_the_end(tmp_path: Path) -> None:
    status, task = trained(Gauges(tmp_path, TrainerConfig(replay_batches=4, replay_s=0.01), CPU), 20)
    assert status.replay_events_per_s > 0
    assert task.steps >= 4 * 3
    assert (tmp_path / "ceiling.json").exists()


def test_a_run_without_a_step_has_nothing_to_replay(tmp_path: Path) -> None:
    status, task = trained(Gauges(tmp_path, TrainerConfig(replay_batches=4), CPU), 0)
    assert (status.replay_events_per_s, task.steps) == (0, 0)


def test_ranks_are_not_replayed_and_only_the_first_is_profiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainerConfig(replay_batches=4, profile_steps=2)
    with caplog.at_level(logging.WARNING):
        status, task = trained(Gauges(tmp_path, config, CPU, rank=1, ranks=2), 20)
    assert (status.replay_events_per_s, task.steps) == (0, 0)
    assert "with one trainer only, not with 2" in caplog.text
    assert not list(tmp_path.iterdir())
    trained(Gauges(tmp_path, config, CPU, rank=0, ranks=2), 20)
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


def test_profiled_steps_do_not_count_in_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 2.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(seconds))
    profiled = WARM_UP_STEPS + 3
    gauges = Gauges(tmp_path, TrainerConfig(profile_steps=3), CPU)
    status, _ = trained(gauges, profiled + START_UP_STEPS - 1)
    assert status.session_events_per_s == 0
    gauges = Gauges(tmp_path, TrainerConfig(profile_steps=3), CPU)
    status, _ = trained(gauges, profiled + START_UP_STEPS + 10)
    assert status.session_events_per_s == pytest.approx(10 / 2.0)
