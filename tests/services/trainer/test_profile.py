"""A profile of a few steps: which ones, and what is written."""

from __future__ import annotations

import gzip
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from services.trainer.speed.profile import WARM_UP_STEPS, StepProfile

CPU = torch.device("cpu")


def train(profile: StepProfile, first: int, last: int) -> None:
    for step in range(first, last + 1):
        torch.ones(4, 4).mm(torch.ones(4, 4))
        profile.stepped(step)


def test_what_a_steps_own_threads_do_is_in_the_profile(tmp_path: Path) -> None:
    profile = StepProfile(tmp_path, 3, CPU)
    with ThreadPoolExecutor(1) as threads:
        for step in range(1, WARM_UP_STEPS + 4):
            threads.submit(lambda: torch.ones(4, 4).mm(torch.ones(4, 4))).result()
            profile.stepped(step)
    (path,) = (tmp_path / "profile").glob("*.txt")
    assert re.findall(r"aten::mm .*?(\d+) *$", path.read_text(), re.MULTILINE) == ["3"]


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


def test_a_run_that_ends_early_writes_what_was_recorded(tmp_path: Path) -> None:
    profile = StepProfile(tmp_path, 50, CPU)
    train(profile, 1, WARM_UP_STEPS + 2)
    profile.close()
    assert len(names(tmp_path)) == 2
    assert "Profile of 2 steps" in next((tmp_path / "profile").glob("*.txt")).read_text()


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
