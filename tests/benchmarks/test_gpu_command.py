"""`python -m benchmarks.gpu` on the CPU with tiny sizes, and mistakes of its user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.columns import COLUMNS
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.process, pytest.mark.slow]

SHOWN_OTHERWISE = {"particles", "flops", "bytes"}
"""Values of the step that the page has as rates."""


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


def written(folder: Path) -> tuple[str, dict[str, Any]]:
    """Page and JSON, of the same name."""
    (page,), (data,) = folder.glob("*.md"), folder.glob("*.json")
    assert page.stem == data.stem
    return page.read_text(), json.loads(data.read_text())


@pytest.mark.timeout(2400)
def test_on_the_cpu_every_stage_that_makes_sense_there_runs_and_the_others_say_why_not(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--quick", "-o", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    page, data = written(tmp_path)
    findings = {one["name"]: one for one in data["findings"]}
    assert list(findings) == [stage.name for stage in STAGES]
    skipped = {name for name, one in findings.items() if one["state"] == "skipped"}
    assert skipped == {stage.name for stage in STAGES if stage.only_cuda}
    for name, one in findings.items():
        assert one["reason"] if name in skipped else one["state"] == "done", one
        assert bool(one["rows"]) == (name not in skipped)
        keys = {key for row in one["rows"] for key in row}
        assert keys - SHOWN_OTHERWISE <= {column.key for column in COLUMNS[name]}, "a value that the page lacks"
    assert {row["variant"] for row in findings["step"]["rows"]} == {"shipped", "plain", "shipped, as fed"}
    assert all(row["seconds"] > 0 and row["roofline"] > 0 for row in findings["step"]["rows"])
    assert findings["ranks"]["rows"][0]["outcome"] == "the same weights"
    assert findings["pipeline"]["rows"][0]["events_per_s"] > 0
    assert "figures say nothing about a GPU" in page
    assert [line.split("written: ")[1] for line in done.stdout.splitlines()[-2:]] == [
        str(path) for path in sorted(tmp_path.iterdir(), reverse=True)
    ]


def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("-o", str(tmp_path), "--device", "auto", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (2, "--device auto: name the device to measure, cuda, cuda:N or cpu\n")
    assert list(tmp_path.iterdir()) == []
