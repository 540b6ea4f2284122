"""`python -m benchmarks.gpu` on the CPU with tiny sizes, on a machine with torch alone, and mistakes of its user."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import __doc__ as HELP
from benchmarks.gpu.columns import COLUMNS
from benchmarks.gpu.stages import MODEL, STAGES

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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cuda"], "--device cuda: there is no CUDA device here; use --device cpu"),
        (["--device", "gpu"], "--device gpu: expected auto, cpu, cuda or cuda:N"),
        (["--device", "auto"], "--device auto: name the device to measure, cuda, cuda:N or cpu"),
        (["--device", "cpu", "-o", "/proc/here"], "--output /proc/here: can't write there (No such file or directory)"),
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = run("-o", str(tmp_path), *words, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (2, message + "\n")
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples_with_options_that_exist() -> None:
    done = run("--help")
    assert done.returncode == 0
    examples = re.findall(r"^    python -m benchmarks\.gpu(.*)$", str(HELP), re.MULTILINE)
    assert len(examples) == 4
    for example in examples:
        assert f"python -m benchmarks.gpu{example}" in done.stdout
        words = [word for word in shlex.split(example, comments=True) if word.startswith("-")]
        assert all(word in done.stdout.partition("options:")[2] for word in words)


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
    words = [word for stage in STAGES if stage.name != "sanitizer" for word in ("--only", stage.name)]
    done = run(*words, "--device", "cpu", "--quick", "-o", str(tmp_path / "out"), python=python, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    _, data = written(tmp_path / "out")
    states = {one["name"]: (one["state"], one["reason"]) for one in data["findings"]}
    assert states["ceilings"][0] == states["segments"][0] == "done"
    assert states["step"] == ("skipped", "not installed: numpy, pydantic (pip install numpy pydantic)")
    assert states["pipeline"][1].startswith("not installed: numpy, pydantic, pyarrow, zmq (pip install")
    assert "not installed: numpy, pydantic" in done.stdout


def test_torch_numpy_and_pydantic_are_all_that_the_stages_of_the_model_import(tmp_path: Path) -> None:
    """No pyarrow, zmq, msgpack, scipy or matplotlib: what a task, the simulator and a copier import stays small."""
    python, path = bare(tmp_path / "packages", "torch", *MODEL)
    names = [stage.name for stage in STAGES if stage.needs == MODEL and not stage.only_cuda]
    assert names == ["step", "checks", "copies", "memory", "ranks"]
    # Each loads its module at its start, and the longest one, `step`, uses what the others use.
    imported = [*python, "-c", "import benchmarks.gpu.step_stage"]
    assert subprocess.run(imported, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False).returncode == 0
    words = [word for name in names[1:] for word in ("--only", name)]
    done = run(*words, "--device", "cpu", "--quick", "-o", str(tmp_path / "out"), python=python, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    _, data = written(tmp_path / "out")
    assert {one["state"] for one in data["findings"]} == {"done"}


def test_without_torch_it_says_so_in_one_line(tmp_path: Path) -> None:
    python, path = bare(tmp_path / "packages", "numpy")
    done = run("--device", "cpu", "-o", str(tmp_path / "out"), python=python, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (2, "torch 2.7 or newer is needed, and this Python has none\n")


def heed_interruptions() -> None:
    """In a process that a shell starts in the background, and in its children, SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_what_was_measured_before_an_interruption_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick", "-o", str(tmp_path)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interruptions,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "s  plain, float32, 256 events" in line:
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    page, data = written(tmp_path)
    *done, last = data["findings"]  # the step, unless the signal came late
    assert done[0]["name"] == "ceilings"
    assert {one["state"] for one in done} == {"done"}
    assert last["state"] == "interrupted"
    step = next(one for one in data["findings"] if one["name"] == "step")
    assert step["rows"][0]["variant"] == "shipped"
    assert ", interrupted)" in page
