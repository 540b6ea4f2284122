"""`icestream bench trainer --events A,B`: the replay ceiling by the size of a batch."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner, Result

from icestream.commands.bench import sweep
from icestream.commands.bench.command import bench
from services.trainer.speed import replay
from services.trainer.speed.replay import Ceiling

ARGUMENTS = ("--model", "likelihood", "--batches", "2", "--seconds", "0", "--set", "trainer.threads=1")


def run(sizes: str, *more: str) -> Result:
    return CliRunner().invoke(bench, ["trainer", "--events", sizes, "--device", "cpu", *ARGUMENTS, *more])


class FakeSampler:
    def read(self) -> dict[str, float]:
        return {"busy": 0.75}

    def close(self) -> None:
        pass


def test_every_size_is_measured_once_from_the_smallest_on() -> None:
    answer = json.loads(run("32,16,32", "--json").output)
    assert [trial["batch_events"] for trial in answer] == [16, 32]
    for trial in answer:
        assert trial["ceiling"]["events_per_batch"] >= trial["batch_events"]
        assert trial["ceiling"]["events_per_s"] > 0
        assert trial["peak_memory_bytes"] > 1 << 20
        assert trial["gpu_busy"] is None


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("scripted"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate")]
)
def test_the_sweep_ends_at_the_size_that_does_not_fit_the_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried: list[object] = []

    def measure(task: object, batches: list[object], *args: object, **options: object) -> Ceiling | None:
        tried.append(batches)
        if len(tried) == 2:
            raise error
        return replay.measure(task, batches, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "measure", measure)
    lines = run("8,16,24").output.splitlines()
    assert len(tried) == 2
    assert lines[-1].split() == ["16", "out", "of", "memory:", "the", "sweep", "ends", "here"]
    assert lines[-2].split()[0] == "8"


def test_another_error_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args: object, **options: object) -> None:
        raise RuntimeError("a fault of the model")

    monkeypatch.setattr(sweep, "measure", measure)
    result = run("8,16")
    assert str(result.exception) == "a fault of the model"


def test_the_load_of_a_gpu_is_shown_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GPU" not in run("8,16").output
    monkeypatch.setattr(sweep, "start_gpu_sampler", lambda device: FakeSampler())
    lines = run("8,16").output.splitlines()
    assert lines[-3].endswith("GPU busy")
    assert lines[-1].endswith("75%")


@pytest.mark.parametrize("sizes", ["0", "8,", "a", "8,-1", "99999999999", "", "1.5"])
def test_sizes_that_are_none_are_refused(sizes: str) -> None:
    result = run(sizes)
    assert result.exit_code == 2
    assert "expected whole numbers from 1" in result.output
