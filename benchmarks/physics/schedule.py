"""Schedule of the runs in separate processes, ``jobs`` at a time, until each has a result. Results are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.physics.cost import expected_s
from benchmarks.physics.keys import ROOT, result_path, weights_path
from benchmarks.physics.runs import find
from benchmarks.physics.spec import Run

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 20.0
_END_WITHIN_S = 5.0
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

_TOGETHER_S = 40.0
"""Most expected seconds of several runs in one process, whose start takes some: most of them torch's import."""


class RunFailed(Exception):
    """Run that ended without a result; the text is its last lines of output."""


@dataclass
class _Child:
    runs: Sequence[Run]
    process: subprocess.Popen[str]
    log: Path
    begun_s: float
    stage: str = "starting"
    done: float = 0.0

    @property
    def name(self) -> str:
        """Name of its first run, and the number of the others."""
        return self.runs[0].name + (f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else "")

    @property
    def expected_s(self) -> float:
        """Expected seconds of its runs."""
        return sum(map(expected_s, self.runs))

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Read its progress until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                told = json.loads(line)
                self.stage, self.done = told["stage"], told["done"]

    def end(self) -> None:
        """End the process if it is still running."""
        self.process.terminate()
        try:
            self.process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()


def command_of(runs: Sequence[Run], folder: Path) -> list[str]:
    """Command that makes the results of these runs."""
    return [sys.executable, "-m", "benchmarks.physics.one", str(folder), *(run.name for run in runs)]


def make_results(
    runs: Sequence[Run],
    folder: Path,
    jobs: int,
    say: Callable[[str], None],
    command: Callable[[Sequence[Run], Path], list[str]] = command_of,
) -> None:
    """Make the missing results in ``folder``, ``jobs`` at a time; a run waits for the weights from which it starts.

    Long runs begin first, so that all processes end at about the same time.

    Ends its processes if it is interrupted; their runs start again the next time. Raises RunFailed at the first run
    that fails, after the others have ended.
    """
    waiting = sorted((run for run in runs if not result_path(run, folder).exists()), key=expected_s, reverse=True)
    kept = len(runs) - len(waiting)
    say(f"{len(waiting)} runs to make, {kept} kept; {jobs} at a time")
    running: list[_Child] = []
    begun_s = told_s = time.monotonic()
    expected_done_s = 0.0
    try:
        while waiting or running:
            while len(running) < jobs and (some := _next(waiting, running, folder)):
                waiting = [run for run in waiting if run not in some]
                running.append(_start(some, folder, command(some, folder)))
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                child.end()
                if child.process.returncode != 0:
                    last = child.log.read_text().strip().splitlines()[-12:]
                    raise RunFailed("\n".join([f"{child.name} failed ({child.log}):", *last]))
                expected_done_s += child.expected_s
                took_s = time.monotonic() - child.begun_s
                say(f"{child.name}: done in {took_s:.0f} s; {_number(waiting, running)} left")
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                say(_state(running, waiting, told_s - begun_s, expected_done_s, jobs))
            time.sleep(_LOOK_EVERY_S)
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            child.end()


def _number(waiting: Sequence[Run], running: Sequence[_Child]) -> int:
    return len(waiting) + sum(len(child.runs) for child in running)


def _next(waiting: Sequence[Run], running: Sequence[_Child], folder: Path) -> list[Run]:
    """First runs with existing initial weights, short ones together; none while missing weights are being made."""
    found: list[Run] = []
    for run in waiting:
        if run.start_from and not weights_path(find(run.start_from), folder).exists():
            continue
        if found and sum(map(expected_s, (*found, run))) > _TOGETHER_S:
            break
        found.append(run)
    if waiting and not running and not found:
        raise RunFailed(f"{waiting[0].name} begins with the weights of {waiting[0].start_from}, which are not there")
    return found


def _start(runs: Sequence[Run], folder: Path, command: list[str]) -> _Child:
    log = folder / "logs" / f"{runs[0].name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(ROOT)}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
        )
    return _Child(runs, process, log, time.monotonic())


def _state(running: Sequence[_Child], waiting: Sequence[Run], took_s: float, done_s: float, jobs: int) -> str:
    """Status line: running and waiting runs, and the remaining time from the speed so far."""
    doing = ", ".join(f"{child.name} {child.stage} {child.done:.0%}" for child in running)
    # Training is nearly all of a long run; in its evaluation it counts as done. Short ones together have one fraction.
    half_done_s = sum(
        child.expected_s
        * (child.done if child.stage == "training" or len(child.runs) > 1 else float(child.stage != "starting"))
        for child in running
    )
    all_s = sum(map(expected_s, waiting)) + sum(child.expected_s for child in running)
    left_s = max(all_s - half_done_s, 0.0)
    worked_s = done_s + half_done_s
    pace = took_s / worked_s if worked_s > 0 else 1 / jobs
    return f"{doing}; {len(waiting)} wait; about {left_s * pace / 60:.0f} min left"
