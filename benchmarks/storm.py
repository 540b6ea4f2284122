"""Storm of signals on whole runs: SIGKILL, SIGSTOP and SIGCONT at random times, to every process.

Question: after 1,000 and more signals to any of its processes, is the result of a run bit-identical to that of an
undisturbed run, and is nothing left behind, lost or wrongly blamed?

Command, from the repository's root:

    python -m benchmarks.storm [--signals 1000] [--seed N] [--only "three trainers"]

Runs of `icestream run` with a tiny network on simulated files, one after the other until the signals are sent: with the
files in place, with the files behind a web server (cache, eviction, sockets in a folder), with three trainers. All copy
their outputs. `icestream run` is one of the victims: after a kill the same command is given again, until the run has
finished. Each run is struck for at most a minute, and then has to end by itself.

A strike is a kill, or a suspension (of one, some or all processes, shorter or longer than the stall timeout) that
ends with SIGCONT or SIGKILL. The seed determines all choices: process, strike, duration, pause before the next one.
The moment within a process's own work is not reproducible. Processes are forked from one that has imported everything
(`tests/pipeline/zygote.py`): more of them are working when they are struck.

Table: a line for each run, then signals by process and kind. The last line is JSON. Exit code 1 at the first run that
differs from the undisturbed one; its folder is kept, and its path printed.
"""

from __future__ import annotations

import argparse
import http.server
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.storm_strikes import STALL_TIMEOUT_S, VERBS, Record, Storm, Strike, forecast
from benchmarks.storm_verdict import Outcome, files_in_shared_memory, problems
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pipeline"))

from faulty_services import PACE_VARIABLE, STALL_TIMEOUT_VARIABLE
from runs import SMALL_STREAM, Process, Processes, settings

COMMON = (
    *SMALL_STREAM,
    "stream.unit_events=100",  # a unit a step: decoders are always working on some
    "stream.slots=6",
    "trainer.deterministic=true",
    "stream.max_particles_per_event=60",  # some outliers
    "outputs.every_s=0.5",
)
IDLE = "steps that take no time"
"""Condition in which decoders have work at any moment."""
CONDITIONS = {
    "files in place": (),
    "files behind a web server": ("stream.block_files=1", "transport.sockets=folder"),
    "three trainers": ("local.trainers=3",),
    IDLE: ("trainer.checkpoint_every=50",),
}


@dataclass(frozen=True)
class Command:
    """Command `icestream run`, given repeatedly."""

    arguments: Sequence[str]
    is_idle: bool
    """True if steps take no time."""

    def start(self, processes: Processes) -> Process:
        """Start the command."""
        environment = {STALL_TIMEOUT_VARIABLE: f"{STALL_TIMEOUT_S:g}", PACE_VARIABLE: "0" if self.is_idle else ""}
        return processes.start("run", *self.arguments, environment=environment)


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Address of a server of this folder's files, until the end of the block."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            with suppress(ConnectionError):  # the fetcher was killed
                super().copyfile(source, outputfile)

        def log_message(self, *arguments: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def command_of(condition: str, data: Path, url: str, here: Path, epochs: int) -> Command:
    """Command `icestream run` in one of the conditions."""
    files = sorted(data.rglob("*.parquet"))
    served = [argument for path in files for argument in ("-i", f"{url}/{path.relative_to(data)}")]
    inputs = served if "web server" in condition else ["-i", str(data)]
    own = settings(*COMMON, *CONDITIONS[condition], f"outputs.destination={here / 'copies'}")
    is_idle = condition == IDLE
    return Command((*inputs, *own, "--decoders", "2", "--epochs", str(10 * epochs if is_idle else epochs)), is_idle)


def run_storm(folder: Path, seed: int, signals: int, conditions: Sequence[str], *, epochs: int = 8) -> dict[str, Any]:
    """Strike runs, in these conditions by turns, until ``signals`` are sent. Returns the content of the last line.

    Raises AssertionError at the first problem.
    """
    data = folder / "data"
    write_dataset(data, preset("bench"), DatasetPlan(4_800, 6, seed=1))
    strikes, total = forecast(seed), Record()
    undisturbed: dict[str, Outcome] = {}
    began_s = time.monotonic()
    print("run | condition | seconds | sessions | signals | missed | steps | result")
    with web_server(data) as url:
        for number in itertools.count():
            condition = conditions[number % len(conditions)]
            if condition not in undisturbed:
                here = folder / f"calm-{number}"
                _, undisturbed[condition] = _run(here, command_of(condition, data, url, here, epochs), None, 0)
            here = folder / f"run-{number}"
            command, run_s = command_of(condition, data, url, here, epochs), time.monotonic()
            record, outcome = _run(here, command, strikes, signals - total.sent)
            differences = outcome.differences(undisturbed[condition])
            figures = f"{time.monotonic() - run_s:.0f} | {record.sessions} | {record.sent} | {record.missed}"
            result = "; ".join(differences) or "the same"
            print(f"{number} | {condition} | {figures} | {outcome.steps} | {result}", flush=True)
            assert not differences, f"run {number} ({condition}): {result}"
            shutil.rmtree(here)
            total.signals += record.signals
            total.strikes += record.strikes
            total.sessions += record.sessions
            if total.sent >= signals:
                return _figures(total, seed, number + 1, time.monotonic() - began_s)
    raise AssertionError


def _run(here: Path, command: Command, strikes: Iterator[Strike] | None, signals: int) -> tuple[Record, Outcome]:
    """Record and outcome of one run, struck or not. Raises AssertionError unless it ends well."""
    here.mkdir()
    shared_memory = files_in_shared_memory()
    processes, record = Processes(here / "run", here), Record()
    try:
        Storm(processes, partial(command.start, processes), strikes or iter(()), record).blow(signals)
        found = problems(processes, record, here / "copies", shared_memory)
        assert not found, f"{here.name}: " + "\n".join(found)
        return record, Outcome.of(processes)
    finally:
        processes.end()


def _figures(total: Record, seed: int, runs: int, seconds: float) -> dict[str, Any]:
    by_verb = {verb: {name: total.signals[verb, name] for name in ("SIGKILL", "SIGSTOP", "SIGCONT")} for verb in VERBS}
    return {
        "seed": seed,
        "runs": runs,
        "sessions": total.sessions,
        "seconds": round(seconds),
        "signals": total.sent,
        "by_process": by_verb,
        "by_strike": dict(total.strikes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A storm of signals at whole runs.")
    parser.add_argument("--signals", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--only", choices=CONDITIONS, help="one of the conditions")
    arguments = parser.parse_args()
    conditions = [arguments.only] if arguments.only else list(CONDITIONS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves no run behind
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"seed {arguments.seed}")
    try:
        figures = run_storm(folder, arguments.seed, arguments.signals, conditions)
    except AssertionError as error:
        print(f"{error}\nseed {arguments.seed}; kept: {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    print("\nprocess | SIGKILL | SIGSTOP | SIGCONT")
    for verb, counts in figures["by_process"].items():
        print(" | ".join(map(str, (verb, *counts.values()))))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
