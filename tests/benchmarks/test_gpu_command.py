"""`python -m benchmarks.gpu` on the CPU with tiny sizes, and mistakes of its user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import STAGES
from benchmarks.gpu.checks import busy_in
from benchmarks.gpu.page import with_rates

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.process, pytest.mark.slow]


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    environment, pipe = os.environ | {"OMP_NUM_THREADS": "1"} | variables, subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=environment)


def run(*words: str, **variables: str) -> tuple[int, str]:
    """Exit code and errors."""
    with start(*words, **variables) as process:
        _, errors = process.communicate()
    return process.returncode, errors


def written(folder: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The newest JSON, and its findings by stage."""
    path = max(folder.glob("*.json"), key=lambda one: len(one.name))
    assert path.with_suffix(".md").exists()
    return path, {one["name"]: one for one in json.loads(path.read_text())["findings"]}


@pytest.mark.timeout(2400)
def test_on_the_cpu_every_stage_that_makes_sense_there_runs_and_a_second_command_adds_the_rest(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--quick", "-o", str(tmp_path))
    assert run(*words)[0] == 0
    path, findings = written(tmp_path)
    assert "figures say nothing about a GPU" in path.with_suffix(".md").read_text()
    assert list(findings) == ["machine", *(stage.name for stage in STAGES)]
    for stage in STAGES:
        found = findings[stage.name]
        assert found["state"] == ("not here" if stage.only_cuda else "done"), found
        assert bool(found["rows"]) != stage.only_cuda
        assert not found["left_out"]
    *steps, last = findings["step"]["rows"]
    assert {row["variant"] for row in steps} == {"shipped", "plain", "as fed"}
    assert all(row["seconds"] > 0 and row["bytes_share"] > 0 for row in steps)
    assert findings["ranks"]["rows"][0]["outcome"] == "the same weights"
    assert findings["trains"]["rows"][0]["steps"] == 20
    assert findings["runs"]["rows"][0]["events_per_s"] > 0
    assert 0 < findings["runs"]["rows"][0]["busy_in_profile_share"] <= 1

    findings["step"] |= {"state": "cut off", "rows": steps}
    findings["ranks"]["left_out"] = ["a part"]
    path.write_text(json.dumps({"findings": list(findings.values())}))
    assert run(*words, "--again", str(path))[0] == 0
    _, findings = written(tmp_path)
    assert list(findings) == ["machine", "step", "ranks"]
    (row,) = findings["step"]["rows"]
    assert [row[key] for key in ("variant", "precision")] == [last[key] for key in ("variant", "precision")]
    assert row["bytes_share"] > 0, "a share of the first command's ceiling"


def test_a_command_that_is_ended_has_written_the_page(tmp_path: Path) -> None:
    with start("--device", "cpu", "-o", str(tmp_path), "--only", "memory") as process:
        assert process.stdout is not None
        assert any("memory (at most" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 130
    assert written(tmp_path)[1]["memory"]["state"] == "interrupted"


def test_mistakes_of_the_user_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.json", tmp_path / "out"
    page.write_text("[]")
    auto = "--device auto: name the device to measure, cuda, cuda:N or cpu\n"
    assert run("-o", str(folder), "--device", "auto", CUDA_VISIBLE_DEVICES="") == (2, auto)
    wrong = f"--again {page}: expected the JSON that this command wrote beside its page\n"
    assert run("-o", str(folder), "--again", str(page)) == (2, wrong)
    assert list(folder.iterdir()) == []


def test_figures_are_relative_to_the_plain_step_and_overlapping_kernels_count_once() -> None:
    step = {"table": "step", "precision": "tf32", "events": 10}
    plain, shipped, compiled = ({"variant": name, **step} for name in ("plain", "shipped", "compiled"))
    rows = [plain | {"seconds": 6.0}, shipped | {"seconds": 2.0, "flops": 8.0}, compiled | {"seconds": 1.0}]
    assert [row["plain_tf32"] for row in with_rates(rows, rows)] == [1.0, 3.0, 6.0]
    assert with_rates(rows, rows)[2]["flop_per_s"] == 8.0
    kernels = [{"cat": "kernel", "ts": at * 1e6, "dur": 2e6} for at in (0, 1, 8)]
    assert busy_in([*kernels, {"cat": "cpu_op", "ts": 0.0, "dur": 9e9}], {"kernel"}) == (5.0, 10.0)
