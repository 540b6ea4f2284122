"""`python -m benchmarks.gpu` on the CPU with tiny sizes, on a machine with torch alone, and mistakes of its user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.columns import COLUMNS
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.process, pytest.mark.slow]

SHOWN_OTHERWISE = {"particles", "flops", "bytes"}
"""Values of the step that the page has as rates."""


def run(*words: str, python: tuple[str, ...] = (sys.executable,), **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    command = [*python, "-m", "benchmarks.gpu", *words]
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


def packages_of(*distributions: str) -> set[str]:
    """Modules and packages of distributions and of all that they need, by their name in site-packages."""
    names, found = set(), list(distributions)
    while found:
        name = found.pop()
        if name not in names:
            names.add(name)
            required = [one for one in metadata.requires(name) or [] if "extra ==" not in one]
            found += [word[0] for one in required if (word := re.match(r"[\w-]+", one)) and is_installed(word[0])]
    return {path.parts[0] for name in names for path in metadata.files(name) or [] if path.parts[0] != ".."}


def is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def bare(folder: Path, *distributions: str) -> tuple[tuple[str, ...], str]:
    """Python without site-packages, and the path of a folder that has some of them alone."""
    folder.mkdir()
    site = Path(metadata.distribution("torch").locate_file(""))  # type: ignore[arg-type]
    for name in packages_of(*distributions):
        if (site / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(site / name)
    return (sys.executable, "-S"), str(folder)


def test_on_a_machine_with_torch_alone_the_card_is_measured_and_the_missing_packages_are_named(tmp_path: Path) -> None:
    python, path = bare(tmp_path / "packages", "torch")
    words = [word for stage in STAGES for word in ("--only", stage.name)]
    done = run(*words, "--device", "cpu", "--quick", "-o", str(tmp_path / "out"), python=python, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    _, data = written(tmp_path / "out")
    states = {one["name"]: (one["state"], one["reason"]) for one in data["findings"]}
    assert states["ceilings"][0] == states["segments"][0] == "done"
    assert states["step"] == ("skipped", "not installed: numpy, pydantic (pip install numpy pydantic)")
    assert states["pipeline"][1].startswith("not installed: numpy, pydantic, pyarrow, zmq (pip install")
    assert "not installed: numpy, pydantic" in done.stdout
