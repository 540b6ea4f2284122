"""Stages of benchmarks/gpu where this machine lacks what they need: with fakes of CUDA, of its tools and of runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gpu_page import TINY, Page

from benchmarks.gpu import machine_stage, memory_stage, pipeline_stage, sanitizer_stage, tests_stage
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.setting import Setting


@pytest.fixture
def page() -> Page:
    return Page()


# ---- Machine.


@pytest.mark.process  # it looks for nvidia-smi
def test_the_card_is_described_with_its_driver_also_without_nvidias_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(
        name="NVIDIA Test", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30,
        L2_cache_size=50 << 20, uuid="1-2",
    )  # fmt: skip
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("benchmarks.gpu.machine_stage.device_named", torch.device)
    page = Page()
    machine_stage.run(Setting("cuda"), page.channel)
    assert page.rows[0]["device"] == "NVIDIA Test"
    assert page.rows[0]["card"] == "compute capability 9.0, 132 multiprocessors, 80.0 GiB, L2 50 MiB"
    assert "driver" in page.rows[0]


def test_a_torch_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    monkeypatch.setattr("torch.__version__", "2.6.1+cu118")
    with pytest.raises(SystemExit, match=r"torch 2\.6\.1\+cu118 is too old: 2\.7 or newer is needed"):
        machine_stage.run(TINY, page.channel)


# ---- Memory.


def test_the_allocators_troubles_are_read_from_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"inactive_split_bytes.all.current": 5, "num_alloc_retries": 1, "num_ooms": 2}
    for name, value in {
        "memory_stats": told, "memory_allocated": 3, "max_memory_allocated": 4, "memory_reserved": 6,
        "synchronize": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"torch.cuda.{name}", lambda device, value=value: value)
    assert memory_stage.memory_of(torch.device("cuda")) == {
        "allocated_bytes": 3,
        "max_allocated_bytes": 4,
        "reserved_bytes": 6,
        "inactive_split_bytes": 5,
        "retries": 1,
        "out_of_memory": 2,
    }


@pytest.mark.parametrize(("grown_mib", "fails"), [(7, False), (9, True)])
def test_memory_that_grows_after_the_first_steps_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, page: Page, grown_mib: int, fails: bool
) -> None:
    held = iter([100 << 20, (100 + grown_mib) << 20])
    monkeypatch.setattr(memory_stage, "held_bytes", lambda device: next(held))
    monkeypatch.setattr(memory_stage, "memory_of", lambda device: {})
    monkeypatch.setattr(Setting, "is_cuda", True)
    memory_stage.run(Setting("cpu", ragged_steps=10), page.channel)
    assert page.failures == (["memory grew by 9.0 MiB from step 2 to 10"] if fails else [])


def test_no_ragged_batch_has_more_muons_than_the_largest_one() -> None:
    import numpy as np

    from benchmarks.gpu.data import simulated

    events, rng, cpu = simulated(2_000), np.random.default_rng(1), torch.device("cpu")
    most = memory_stage.largest_batch(events, cpu)
    batches = [memory_stage.ragged_batch(events, rng, cpu) for _ in range(200)]
    assert len(most.microbatches) == 3
    assert max(batch.num_particles for batch in batches) <= most.num_particles
    assert len({batch.num_particles for batch in batches}) > 100


# ---- compute-sanitizer.

GOOD = """171 comparisons on cuda, 0 wrong
========= ERROR SUMMARY: 0 errors"""
BAD = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at segment_max_kernel+0x1f0 in segments.py:12
171 comparisons on cuda, 0 wrong
========= ERROR SUMMARY: 3 errors"""


@pytest.mark.process
@pytest.mark.parametrize("output", [GOOD, BAD], ids=["good", "bad"])
def test_what_compute_sanitizer_finds_is_a_failure_with_kernel_and_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str
) -> None:
    tool = tmp_path / "compute-sanitizer"
    code = 86 if output == BAD else 0
    tool.write_text(
        f"#!/bin/sh\necho $PYTHON_ARGS \"$@\" >> {tmp_path}/calls\ncat <<'END'\n{output}\nEND\nexit {code}\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    page = Page()
    page.channel._deadline_s = 1e12
    monkeypatch.setattr(Channel, "left_s", 100.0)
    sanitizer_stage.run(Setting("cuda"), page.channel)
    assert [row["tool"] for row in page.rows] == ["memcheck", "racecheck"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("--tool memcheck --error-exitcode 86")
    assert calls[0].endswith("-m benchmarks.gpu.segment_cases cuda")
    if output == GOOD:
        assert page.rows[0]["summary"] == "ERROR SUMMARY: 0 errors; 171 comparisons on cuda, 0 wrong"
        assert page.failures == []
    else:
        assert page.failures[0] == (
            "memcheck: ERROR SUMMARY: 3 errors; 171 comparisons on cuda, 0 wrong; Invalid __global__ read of size 4"
            " bytes at segment_max_kernel+0x1f0 in segments.py:12"
        )


def test_without_compute_sanitizer_it_is_left_out(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    sanitizer_stage.run(Setting("cuda"), page.channel)
    assert page.rows == []
    assert "not found in PATH" in page.left_out[0]


# ---- Marked tests.

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_skipped"><skipped message="torch sees no NVML"/></testcase>
<testcase classname="tests.b" name="test_bad"><failure message="assert 1 == 2&#10; + where">E</failure></testcase>
<testcase classname="" name="tests.c"><error message="collection failure">E   ModuleNotFoundError: No module named
 'pyarrow'</error></testcase>
<testcase classname="" name="tests.d"><error message="collection failure">No module named 'zmq'</error></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_the_marked_tests_are_counted_and_missing_packages_are_no_failure(page: Page) -> None:
    tests_stage._read(REPORT, Setting("cuda"), page.channel)
    assert page.rows == [{"selection": "cuda and not slow", "passed": 1, "skipped": 1}]
    assert page.failures == ["tests.b::test_bad: assert 1 == 2", "::tests.c: collection failure"]
    assert page.left_out == [
        "::tests.d: it imports zmq, which is not installed",
        "tests.a::test_skipped: torch sees no NVML",
    ]


def test_on_a_gpu_it_is_a_failure_that_no_marked_test_passes(page: Page) -> None:
    tests_stage._read("<testsuites/>", Setting("cuda"), page.channel)
    assert page.failures == ["no marked test passed"]


def test_files_with_marked_tests_are_found() -> None:
    names = {path.name for path in tests_stage.marked_files()}
    assert {"test_copier.py", "test_host_syncs.py", "test_memory.py", "test_snapshot.py"} <= names
    assert Path(__file__).name not in names


# ---- Run from files.


def test_figures_of_a_run_are_those_after_its_first_steps() -> None:
    seen = [
        {"step": step, "session_events_per_s": 1000.0 * step, "wait_fraction": wait, "gpu": gpu}
        | {"flops_per_s": None if step == 60 else 1e12 * step, "copied_bytes_per_s": 1e6 * step}
        for step, wait, gpu in [
            (5, 1.0, None),
            (20, 0.1, {"utilisation": 0.8, "memory_utilisation": 0.3}),
            (40, 0.2, {"utilisation": 0.9, "memory_utilisation": 0.4}),
            (60, 0.3, {"utilisation": None, "memory_utilisation": None}),
        ]
    ]
    assert pipeline_stage.measured(seen) == {
        "steps": 60,
        "events_per_s": 60_000.0,
        "waited": 0.2,
        "flops_per_s": 30e12,
        "copied_bytes_per_s": 40e6,
        "gpu_busy": pytest.approx(0.85),
        "memory_busy": pytest.approx(0.35),
    }
    assert pipeline_stage.measured(seen[:1]) == {"note": "only 5 steps: too few to measure"}
    assert pipeline_stage.measured([]) == {"note": "only 0 steps: too few to measure"}


def test_a_run_without_all_dependencies_is_left_out_by_their_names(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    version = pipeline_stage.metadata.version

    def without(name: str) -> str:
        if name == "pyjwt":
            raise pipeline_stage.metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr(pipeline_stage.metadata, "version", without)
    pipeline_stage.run(TINY, page.channel)
    assert page.left_out == ["a run from files: not installed: pyjwt"]
