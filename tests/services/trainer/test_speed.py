"""The pace of a session, without its start."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from toy_events import toy_batch

from common.status import TrainerStatus
from services.config.settings import TrainerConfig
from services.trainer import speed as module
from services.trainer.speed import (
    MIN_ROUNDS,
    START_UP_STEPS,
    WARM_UP_STEPS,
    Ceiling,
    FlopMeter,
    Gauges,
    Pace,
    Sample,
    StepProfile,
    measure,
)
from services.trainer.state import TrainState
from workloads.base.batch import Batch, Microbatch


def test_the_first_steps_do_not_count_and_everything_between_later_ones_does() -> None:
    pace = Pace()
    for step in range(START_UP_STEPS):
        pace.stepped(100.0 * step, 1_000_000)
        assert pace.events_per_s == 0.0
    began_s = 100.0 * (START_UP_STEPS - 1)
    pace.stepped(began_s + 1.0, 100)
    pace.stepped(began_s + 4.0, 200)  # a checkpoint was written in between
    assert pace.events_per_s == pytest.approx(300 / 4)


class ProductTask:
    """One product of (particles, 3) @ (3, 5) a step."""

    def __init__(self) -> None:
        self.counted: list[bool] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.counted.append(_get_current_dispatch_mode() is not None)
        for part in batch.microbatches:
            part.particle_columns["muons"] @ torch.ones(3, 5)
        return {"loss": torch.tensor(float(batch.num_events))}


def metered(meter: FlopMeter, task: Any, batch: Batch) -> None:
    with meter.counted(task, batch):
        task.step(batch)


def test_later_steps_count_by_their_particles_and_a_batch_of_another_rank_counts_nothing() -> None:
    meter, task = FlopMeter(), ProductTask()
    small, large = toy_batch(30), toy_batch(90)
    metered(meter, task, Batch(()))
    assert meter.total == 0.0
    metered(meter, task, small)
    assert meter.total == small.num_particles * 30.0
    metered(meter, task, large)
    metered(meter, task, Batch(()))
    assert meter.total == pytest.approx((small.num_particles + large.num_particles) * 30.0)
    assert task.counted == [False, True, False, False], "counting costs time"


def test_a_compiled_model_is_not_counted_so_that_a_restart_computes_as_before() -> None:
    meter, task = FlopMeter(), ProductTask()
    task.config = SimpleNamespace(compile=True)  # type: ignore[attr-defined]
    metered(meter, task, toy_batch(30))
    assert task.counted == [False]
    assert meter.total == 0.0


CPU = torch.device("cpu")


def train(profile: StepProfile, first: int, last: int) -> None:
    """Make steps whose products are computed by a thread of their own."""
    with ThreadPoolExecutor(1) as threads:
        for step in range(first, last + 1):
            threads.submit(lambda: torch.ones(4, 4).mm(torch.ones(4, 4))).result()
            profile.stepped(step)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "profile").iterdir())


def test_the_steps_after_the_first_few_are_profiled_and_no_others(tmp_path: Path) -> None:
    profile = StepProfile(tmp_path, 3, CPU)
    train(profile, 101, 100 + WARM_UP_STEPS + 20)
    assert profile.done
    profile.close()

    first = 101 + WARM_UP_STEPS
    name = f"steps-{first:08d}-{first + 2:08d}"
    assert names(tmp_path) == [f"{name}.trace.json.gz", f"{name}.txt"]
    table = (tmp_path / "profile" / f"{name}.txt").read_text()
    assert f"Profile of 3 steps ({first} to {first + 2}) on cpu" in table
    (calls,) = re.findall(r"aten::mm .*?(\d+) *$", table, re.MULTILINE)
    assert calls == "3"
    with gzip.open(tmp_path / "profile" / f"{name}.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"] == "aten::mm" for event in events) == 3


@pytest.mark.parametrize("steps", [0, 3, WARM_UP_STEPS])
def test_a_run_that_ends_before_says_so(tmp_path: Path, steps: int, caplog: pytest.LogCaptureFixture) -> None:
    profile = StepProfile(tmp_path, 5, CPU)
    with caplog.at_level(logging.WARNING):
        train(profile, 1, steps)
        profile.close()
    assert "nothing was profiled" in caplog.text
    assert not (tmp_path / "profile").exists()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_profile_on_cuda_is_sorted_by_the_time_on_the_device(tmp_path: Path) -> None:
    device = torch.device("cuda")
    profile = StepProfile(tmp_path, 2, device)
    for step in range(1, WARM_UP_STEPS + 4):
        torch.ones(4, 4, device=device).mm(torch.ones(4, 4, device=device))
        profile.stepped(step)
    assert "Self CUDA" in next((tmp_path / "profile").glob("*.txt")).read_text()


def batch_of(num_events: int, number: int = 0) -> Batch:
    offsets = 2 * torch.arange(num_events + 1)
    return Batch((Microbatch(0, number, 0, offsets, offsets.numpy(), {}, {}, num_events, 2 * num_events),))


class TimedTask:
    """A step takes as long as it is told, and time passes in steps only; notes the batches."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.now_s = 0.0
        self.seen: list[int] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.now_s += self.seconds[min(len(self.seen), len(self.seconds) - 1)]
        self.seen.append(batch.microbatches[0].unit)
        return {}

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("the replay saves nothing")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("the replay loads nothing")


def numbers(batches: list[Batch]) -> list[int]:
    return [batch.microbatches[0].unit for batch in batches]


def replayed(step_s: list[float], *, of: list[Batch], **options: Any) -> tuple[Ceiling | None, TimedTask]:
    task = TimedTask(step_s)
    return measure(task, of, CPU, clock=lambda: task.now_s, **options), task


def test_a_ceiling_is_the_median_round_without_the_first() -> None:
    of = [batch_of(10, 0), batch_of(30, 1)]
    ceiling, task = replayed([50.0, 50.0, 1.0, 1.0, 2.0, 2.0, 9.0, 9.0], of=of, seconds=0.1)
    assert task.seen == [0, 1] * (1 + MIN_ROUNDS)
    assert ceiling is not None
    assert ceiling.events_per_s == pytest.approx(40 / 4.0)
    assert ceiling.particles_per_s == pytest.approx(80 / 4.0)
    assert ceiling.steps_per_s == pytest.approx(0.5)
    assert (ceiling.s_per_step_min, ceiling.s_per_step, ceiling.s_per_step_max) == (1.0, 2.0, 9.0)
    assert (ceiling.batches, ceiling.rounds, ceiling.events_per_batch) == (2, 3, 20)


def test_a_replay_lasts_as_long_and_as_many_steps_as_it_is_told() -> None:
    assert len(replayed([1.0], of=[batch_of(1)], seconds=10.0)[1].seen) == 1 + 10
    assert len(replayed([1.0], of=[batch_of(1)] * 4, seconds=0.1, steps=21)[1].seen) == 4 + 24


def test_a_replay_that_is_stopped_gives_the_rounds_that_it_has_or_nothing() -> None:
    calls = iter([False] * 5 + [True])
    ceiling, _ = replayed([1.0], of=[batch_of(1)] * 2, seconds=99.0, stopped=lambda: next(calls))
    assert ceiling is not None
    assert ceiling.rounds == 1
    assert replayed([1.0], of=[batch_of(1)], seconds=99.0, stopped=lambda: True)[0] is None


def test_a_sample_is_of_batches_from_all_over_the_session() -> None:
    sample = Sample(100)
    for number in range(1000):
        sample.add(batch_of(10, number))
        assert len(sample.batches) == min(number + 1, 100)
    kept = numbers(sample.batches)
    assert len(set(kept)) == 100
    assert 400 < sum(kept) / 100 < 600


def trained(gauges: Gauges, steps: int) -> tuple[TrainerStatus, TimedTask]:
    task = TimedTask([1.0])
    state = TrainState(task, CPU, "ab" * 16, headline="w_gap")
    for step in range(1, steps + 1):
        gauges.stepped(step, batch_of(10))
        state.step = step
    return gauges.close(state, TrainerStatus(step=steps), stopped=lambda: False), task


def test_ranks_are_not_replayed_and_only_the_first_is_profiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainerConfig(replay_batches=4, profile_steps=2)
    with caplog.at_level(logging.WARNING):
        status, task = trained(Gauges(tmp_path, config, CPU, rank=1, ranks=2), 20)
    assert (status.replay_events_per_s, task.seen) == (0, [])
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
