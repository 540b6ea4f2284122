"""The replay ceiling: what is replayed, for how long, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.trainer.speed.replay import MIN_ROUNDS, Ceiling, SpreadSample, measure, write_ceiling
from workloads.base.batch import Batch, Microbatch

CPU = torch.device("cpu")


def batch_of(num_events: int, number: int = 0) -> Batch:
    offsets = 2 * torch.arange(num_events + 1)
    return Batch((Microbatch(0, number, 0, offsets, offsets.numpy(), {}, {}, num_events, 2 * num_events),))


class Clock:
    """Time passes in steps only."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedTask:
    """A step takes as long as it is told; notes the batches."""

    def __init__(self, clock: Clock, seconds: list[float]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.seen: list[int] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.clock.now_s += self.seconds[min(len(self.seen), len(self.seconds) - 1)]
        self.seen.append(batch.microbatches[0].unit)
        return {}

    def observed(self, metrics: Mapping[str, float]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("the replay saves nothing")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("the replay loads nothing")


def numbers(batches: list[Batch]) -> list[int]:
    return [batch.microbatches[0].unit for batch in batches]


def replayed(step_s: list[float], *, of: list[Batch], **options: Any) -> tuple[Ceiling | None, TimedTask]:
    clock = Clock()
    task = TimedTask(clock, step_s)
    return measure(task, of, CPU, clock=clock, **options), task


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


def test_nothing_can_not_be_replayed() -> None:
    with pytest.raises(ValueError, match="nothing to replay"):
        replayed([1.0], of=[], seconds=1.0)


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 17, 100, 1000])
def test_a_sample_is_spread_evenly_over_all_batches(steps: int) -> None:
    sample = SpreadSample(4)
    for number in range(steps):
        sample.add(batch_of(10, number))
    kept = numbers(sample.whole())
    assert kept[0] == 0
    assert min(steps, 3) <= len(kept) <= 4
    strides = {after - before for before, after in pairwise(kept)}
    assert len(strides) <= 1, kept
    assert kept[-1] + max(strides, default=1) >= steps, "it reaches to the end"


def test_a_batch_much_smaller_than_most_is_left_out() -> None:
    sample = SpreadSample(8)
    for number, num_events in enumerate((10, 12, 11, 3)):
        sample.add(batch_of(num_events, number))
    assert numbers(sample.whole()) == [0, 1, 2]
    assert SpreadSample(8).whole() == []


def test_a_ceiling_is_written_as_a_whole(tmp_path: Path) -> None:
    ceiling, _ = replayed([1.0], of=[batch_of(1)], seconds=1.0)
    assert ceiling is not None
    write_ceiling(tmp_path, ceiling)
    assert Ceiling.model_validate_json((tmp_path / "ceiling.json").read_text()) == ceiling
    assert [path.name for path in tmp_path.iterdir()] == ["ceiling.json"]
