"""Tests with the marker `cuda`, without what the machine may lack: the project's conftest and plug-ins of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.processes import end_with_parent
from benchmarks.gpu.setting import Setting

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"^\s*@pytest\.mark\.cuda|marks=pytest\.mark\.cuda|^pytestmark = .*mark\.cuda", re.MULTILINE)
SELECTION = "cuda and not slow"
"""The slow one, memory over ragged steps, is a stage of its own."""


def run(setting: Setting, channel: Channel) -> None:
    """Rows: file, tests passed, failed and skipped."""
    files = marked_files()
    if not files:
        channel.leave_out("tests: no folder tests/ with marked ones beside benchmarks/")
        return
    channel.say(f"pytest -m '{SELECTION}' on {len(files)} files")
    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        report = Path(folder, "report.xml")
        process = subprocess.Popen(
            [*command(folder, report), *map(str, files)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=end_with_parent,
        )
        stopped = threading.Timer(channel.left_s - 3.0, process.kill)
        stopped.start()
        assert process.stdout is not None
        lines = [line.rstrip() for line in process.stdout]
        code = process.wait()
        stopped.cancel()
        if not report.is_file():
            channel.leave_out(f"tests: pytest was ended, or began none ({(lines or ['no output'])[-1][:200]})")
            if code > 0:
                channel.fail(f"tests: exit code {code}")
            return
        _read(report.read_text(), setting, channel)


def command(folder: str, report: Path) -> list[str]:
    """pytest's command line, without files."""
    options = [f"pythonpath={ROOT} {ROOT / 'tests'} {ROOT / 'tests' / 'pipeline'}", f"cache_dir={folder}"]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(ROOT), "--noconftest"]
    command += ["-m", SELECTION, "--continue-on-collection-errors", f"--junitxml={report}", "-p", "no:xdist"]
    return [*command, *(word for option in options for word in ("-o", option))]


def marked_files() -> list[Path]:
    """Files of tests/ in which a test has the marker."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARKED.search(path.read_text())]


def _read(report: str, setting: Setting, channel: Channel) -> None:
    passed, skipped = 0, []
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((one for kind in ("failure", "error") if (one := case.find(kind)) is not None), None)
        skip = case.find("skipped")
        missing = re.search(r"No module named '([\w.]+)'", (problem.text or "") if problem is not None else "")
        if missing:
            channel.leave_out(f"{name}: it imports {missing[1]}, which is not installed")
        elif problem is not None:
            channel.fail(f"{name}: {(problem.get('message') or '').splitlines()[0][:200]}")
        elif skip is not None:
            skipped.append(f"{name}: {skip.get('message')}")
        else:
            passed += 1
    channel.row(selection=SELECTION, passed=passed, skipped=len(skipped))
    if setting.is_cuda:
        for reason in skipped:
            channel.leave_out(reason)
        if not passed:
            channel.fail("no marked test passed")
    else:
        channel.leave_out(f"{len(skipped)} marked tests: collected, and skipped without a CUDA device")
