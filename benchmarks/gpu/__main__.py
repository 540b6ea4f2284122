"""First hour on a GPU: what works on it, and how fast, in one command of at most eight minutes.

Question: does the training run right on this card (marked tests, no host sync, the same bits in
deterministic mode, flat memory, two ranks), how fast is the step (plain, shipped, compiled; float32, tf32, bf16; 8,192
to 1,000,000 events) against the card's own ceilings, and is the GPU busy in a run from files?

Needs Python 3.11 and torch 2.7, for the step also numpy and pydantic, for the marked tests pytest, for the run from
files all of icestream. What is missing, is left out and named. Nothing is downloaded; events are simulated in memory.

Examples, from the repository's root:

    python -m benchmarks.gpu                            # the first GPU; page and JSON to benchmarks/results/
    python -m benchmarks.gpu --device cuda:1 -o /tmp    # another one, written elsewhere
    python -m benchmarks.gpu --only step --only copies  # some stages, with all of the time
    python -m benchmarks.gpu --device cpu --quick       # tiny sizes: does the command itself work here?

Table: a page with one table a stage, and the same rows as JSON; the last lines say where. Exit code: 1 if a stage or a
check failed (the others are measured all the same), 2 if the command can't start.

Reading: shares are relative to ceilings measured in the same minutes. A GPU that others use makes all of it worthless.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from benchmarks.gpu.channel import Finding
from benchmarks.gpu.processes import measure
from benchmarks.gpu.report import Measurement, write
from benchmarks.gpu.schedule import run_stages
from benchmarks.gpu.setting import Setting, quick
from benchmarks.gpu.stages import BUDGET_S, MACHINE, STAGES, missing_modules
from services.trainer.environment import prepare

ROOT = Path(__file__).resolve().parents[2]
USER_ERROR, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu (default: cuda)")
    parser.add_argument("--only", choices=[stage.name for stage in STAGES], action="append", help="only this stage")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work?")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of page and JSON"
    )
    given = parser.parse_args(arguments)
    begun_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:5.0f} s  {text}", flush=True)

    problem = why_not_writable(given.output)
    if missing_modules(["torch"]):
        problem = "torch 2.7 or newer is needed, and this Python has none"
    if problem:
        print(problem, file=sys.stderr)
        return USER_ERROR
    setting = quick(given.device) if given.quick else Setting(given.device)
    prepare(os.environ, deterministic=False)
    say("loading torch")
    machine = measure(MACHINE, setting, MACHINE.limit_s, say)
    if not machine.rows:
        print(machine.reason, file=sys.stderr)
        return USER_ERROR
    for name, value in machine.rows[0].items():
        say(f"{name.replace('_', ' ')}: {value}")
    # Nobody waits for a CPU that has other work: there the question is only whether everything works.
    patience = 10 if given.quick and not setting.is_cuda else 1
    stages = [
        stage._replace(limit_s=patience * stage.limit_s)
        for stage in STAGES
        if not given.only or stage.name in given.only
    ]
    findings: list[Finding] = []
    was_interrupted = False
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is written then, too
        for finding in run_stages(
            stages,
            is_cuda=setting.is_cuda,
            end_s=begun_s + patience * BUDGET_S,
            measure=lambda stage, limit_s: measure(stage, setting, limit_s, say),
            say=say,
        ):
            findings.append(finding)
    except KeyboardInterrupt:  # between two stages
        was_interrupted = True
    measurement = Measurement(
        date=str(date.today()),
        command=command_of(given),
        commit=commit(),
        setting=setting,
        machine=machine.rows[0],
        findings=findings,
        seconds=time.monotonic() - begun_s,
        is_quick=given.quick,
        was_interrupted=was_interrupted or any(one.state == "interrupted" for one in findings),
    )
    return finish(measurement, given.output, say)


def finish(measurement: Measurement, folder: Path, say: Callable[[str], None]) -> int:
    """Write page and JSON, say what is wrong, and return the exit code."""
    paths = write(measurement, folder)
    bad = [one for one in measurement.findings if one.is_bad]
    for one in bad:
        say(f"{one.name} FAILED: {one.reason or '; '.join(one.failures)}")
    for path in paths:
        say(f"written: {path}")
    if measurement.was_interrupted:
        return INTERRUPTED
    return 1 if bad else 0


def command_of(given: argparse.Namespace) -> str:
    """Return the command line, but for the folder of the results."""
    words = ["python -m benchmarks.gpu"]
    words += [f"--device {given.device}"] if given.device != "cuda" else []
    words += [f"--only {stage}" for stage in given.only or ()]
    return " ".join([*words, *(["--quick"] if given.quick else [])])


def why_not_writable(folder: Path) -> str:
    """Why no page can be written to a folder, which is made; empty: it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"--output {folder}: can't write there ({error.strerror})"


def commit() -> str:
    """Commit of this checkout; unknown without git."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown: no git here"
    return done.stdout.strip() or "unknown: no git repository"


if __name__ == "__main__":
    sys.exit(main())
