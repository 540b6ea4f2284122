"""The pace of a session, without its start."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from common.status import TrainerStatus
from services.config.settings import TrainerConfig
from services.trainer import speed as module
from services.trainer.speed import START_UP_STEPS, WARM_UP_STEPS, Gauges, Pace, StepProfile
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


def trained(gauges: Gauges, steps: int) -> TrainerStatus:
    for step in range(1, steps + 1):
        gauges.stepped(step, batch_of(10))
    return gauges.close(TrainerStatus(step=steps))


def test_of_several_ranks_only_the_first_is_profiled(tmp_path: Path) -> None:
    config = TrainerConfig(profile_steps=2)
    trained(Gauges(tmp_path, config, CPU, rank=1), 20)
    assert not list(tmp_path.iterdir())
    trained(Gauges(tmp_path, config, CPU, rank=0), 20)
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


def test_profiled_steps_do_not_count_in_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 2.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(seconds))
    profiled = WARM_UP_STEPS + 3
    gauges = Gauges(tmp_path, TrainerConfig(profile_steps=3), CPU)
    status = trained(gauges, profiled + START_UP_STEPS - 1)
    assert status.session_events_per_s == 0
    gauges = Gauges(tmp_path, TrainerConfig(profile_steps=3), CPU)
    status = trained(gauges, profiled + START_UP_STEPS + 10)
    assert status.session_events_per_s == pytest.approx(10 / 2.0)
