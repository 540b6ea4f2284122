"""Does a run stay the same under a storm of signals? SIGKILL, SIGSTOP and SIGCONT at random instants, to every process.

Question: after 1,000 and more signals at any of its processes, is what a run trained the same to the bit as in a run
that nobody disturbed, and is nothing left, lost or blamed?

Command, from the repository's root:

    python -m benchmarks.storm [--signals 1000] [--seed N]

Runs of `icestream run` with a tiny network on simulated files, one after the other until the signals are sent: with the
files in place, with the files behind a web server (cache, eviction, sockets in a folder), with two trainers. All copy
their outputs. `icestream run` is one of the victims: once killed, the same command is given again, until the run has
finished. Each run is struck for at most a minute, and then has to end by itself.

A strike is a kill, or a suspension (of one, some or all processes, shorter or longer than fetcher.stall_timeout_s) that
ends with SIGCONT or SIGKILL. The seed decides all choices: which process, which strike, how long, which pause before
the next one. At which instant of a process's own work it comes is up to the machine. A trainer takes seconds to start,
so it is killed less often than the others.

Table: a line for each run, then signals by process and kind. The last line is JSON. Exit code 1 at the first run that
isn't the undisturbed one; its folder is kept, and named.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import http.server
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from services.simulator.config import preset
from services.simulator.write import DatasetPlan, write_dataset
from tests.pipeline.runs import SMALL_STREAM, Processes, same, settings

STALL_TIMEOUT_S = 3.0
STRIKES_PER_S = 4.0
STORM_S = 60.0
"""A run is struck for so long at most."""
END_S = 180.0
"""The run has to finish within so long after its last strike."""
_POLL_S = 0.01

COMMON = (
    *SMALL_STREAM,
    "trainer.deterministic=true",
    "stream.max_particles_per_event=60",  # some outliers
    "local.restart_max_s=0",
    "outputs.every_s=0.5",
    f"fetcher.stall_timeout_s={STALL_TIMEOUT_S:g}",
    "fetcher.max_unit_deaths=1000000",  # whoever is hit again and again may have the same unit in work each time
)
CONDITIONS = {
    "files in place": (),
    "files behind a web server": ("stream.block_files=1", "transport.sockets=folder"),
    "two trainers": ("local.trainers=2", "stream.lanes=4", "stream.slots=8"),
}
VERBS = {"run": 2, "outputs": 4, "trainer": 6, "fetcher": 15, "decoder": 40}
"""Kills of each, in parts."""
STRIKES = {
    "kill": 22,
    "suspend for a moment": 40,
    "suspend beyond the timeout": 6,
    "suspend and kill": 8,
    "suspend some": 6,
    "suspend all for a moment": 8,
    "suspend all beyond the timeout": 2,
    "kill all": 0.5,
}

STILL_ACTIVE = ("already active in this", "already running in this", "is running in this", "at work in this")
"""A refusal beside processes of the former session that have not ended yet."""


# ------------------------------------------------------------------ choices


@dataclass(frozen=True)
class Strike:
    """One choice of the storm. Whom it meets is seen when it is due."""

    pause_s: float
    """After the strike before."""
    kind: str
    verb: str
    coins: tuple[float, ...]
    """Numbers in [0, 1): the first chooses among processes of one verb, all of them choose "some"."""
    hold_s: float
    """Time from a SIGSTOP to what ends it."""


def forecast(seed: int) -> Iterator[Strike]:
    """The strikes of a storm, without end. Each takes the same number of random numbers."""
    rng = random.Random(seed)
    while True:
        pause_s = rng.expovariate(STRIKES_PER_S)
        kind = rng.choices(list(STRIKES), list(STRIKES.values()))[0]
        killed = rng.choices(list(VERBS), list(VERBS.values()))[0]
        suspended = rng.choice(list(VERBS))
        coins = tuple(rng.random() for _ in range(8))
        short_s, long_s = rng.uniform(0.0, 0.5), rng.uniform(1.1, 1.8) * STALL_TIMEOUT_S
        hold_s = long_s if "beyond" in kind or (kind == "suspend some" and coins[-1] < 0.2) else short_s
        yield Strike(pause_s, kind, killed if "kill" in kind else suspended, coins, hold_s)


# ------------------------------------------------------------------ processes


@dataclass(frozen=True)
class Victim:
    """A process of the run, by a descriptor that can't come to mean another."""

    pid: int
    verb: str
    pidfd: int


@dataclass
class Record:
    """What the storm did to a run's processes."""

    signals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verb and signal."""
    strikes: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    """Strikes at a process that wasn't there."""
    sessions: int = 0
    """Times that `icestream run` was started."""
    killed: set[int] = field(default_factory=set)
    """Processes that were killed, or whose parent was."""
    stops: dict[int, list[list[float]]] = field(default_factory=dict)
    """From and to, of each SIGSTOP; by process."""
    fetchers: set[int] = field(default_factory=set)

    @property
    def sent(self) -> int:
        """All signals."""
        return self.signals.total()


class Storm:
    """Strikes one run. Use start(), then blow() until it has ended."""

    def __init__(self, processes: Processes, command: Sequence[str], strikes: Iterator[Strike], record: Record) -> None:
        self.record = record
        self._processes = processes
        self._command = command
        self._strikes = strikes
        self._due: list[tuple[float, int, Victim, signal.Signals]] = []
        """What ends the suspensions, a heap."""
        self._order = itertools.count()
        self._victims: dict[int, Victim] = {}
        self._top = processes.start("run", *command)
        record.sessions += 1

    def blow(self, signals: int) -> None:
        """Strike until ``signals`` are sent, the time is over or the run has ended; then wait for its end.

        Raises AssertionError if it doesn't end, or not well.
        """
        began_s = now_s = time.monotonic()
        coming = next(self._strikes)
        next_s = now_s + coming.pause_s
        while not self._has_finished():
            now_s = time.monotonic()
            blows = now_s < began_s + STORM_S and self.record.sent < signals
            while self._due and self._due[0][0] <= now_s:
                _, _, victim, number = heapq.heappop(self._due)
                self._send(victim, number)
            if blows and now_s >= next_s:
                self._strike(coming, now_s)
                coming = next(self._strikes)
                next_s = now_s + coming.pause_s
            assert now_s < began_s + STORM_S + END_S, f"the run doesn't end\n{self._processes.report()}"
            time.sleep(_POLL_S)
        for victim in self._victims.values():
            os.close(victim.pidfd)

    def _has_finished(self) -> bool:
        """True once the run has ended well; a killed one is started again."""
        if not self._top.ended():
            return False
        exit_code = self._top.popen.returncode
        if exit_code == 0:
            return True
        refused = exit_code == 2 and any(text in self._top.output() for text in STILL_ACTIVE)
        was_killed = exit_code == -signal.SIGKILL and self._top.pid in self.record.killed
        assert was_killed or (refused and self.record.killed), f"exit code {exit_code}\n{self._processes.report()}"
        self._top = self._processes.start("run", *self._command)
        self.record.sessions += 1
        return False

    def _strike(self, strike: Strike, now_s: float) -> None:
        everybody = self._look()
        of_verb = [victim for victim in everybody if victim.verb == strike.verb]
        one = [of_verb[int(strike.coins[0] * len(of_verb))]] if of_verb else []
        some = [v for v, coin in zip(everybody, itertools.cycle(strike.coins), strict=False) if coin < 0.5]
        self.record.strikes[strike.kind] += 1
        end = signal.SIGKILL if strike.kind == "suspend and kill" else signal.SIGCONT
        match strike.kind.split():
            case [*_, "all"] | ["suspend", "all", *_]:
                victims = everybody
            case ["suspend", "some"]:
                victims = some
            case _:
                victims = one
        self.record.missed += not victims
        for victim in victims:
            if strike.kind.startswith("kill"):
                self._send(victim, signal.SIGKILL)
            elif self._send(victim, signal.SIGSTOP):
                heapq.heappush(self._due, (now_s + strike.hold_s, next(self._order), victim, end))

    def _look(self) -> list[Victim]:
        """The living processes, the oldest first."""
        pids = self._processes.pids()
        for pid in pids:
            if pid not in self._victims:
                with suppress(ProcessLookupError, FileNotFoundError, ValueError):
                    pidfd = os.pidfd_open(pid)
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    self._victims[pid] = Victim(pid, words[words.index(b"services") + 1].decode(), pidfd)
        return [self._victims[pid] for pid in pids if pid in self._victims]

    def _send(self, victim: Victim, number: signal.Signals) -> bool:
        record, now_s = self.record, time.monotonic()
        stops = record.stops.setdefault(victim.pid, [])
        if victim.verb == "fetcher":
            record.fetchers.add(victim.pid)
        if number is signal.SIGKILL:
            record.killed.add(victim.pid)
            if victim.pid == self._top.pid:  # its children end with it
                record.killed |= {other.pid for other in self._look()}
        if number is not signal.SIGSTOP and stops:
            stops[-1][1] = min(stops[-1][1], now_s)
        try:
            signal.pidfd_send_signal(victim.pidfd, number)
        except ProcessLookupError:
            return False
        if number is signal.SIGSTOP:
            stops.append([now_s, math.inf])
        record.signals[victim.verb, number.name] += 1
        return True


# ------------------------------------------------------------------ what became of the run


@dataclass(frozen=True)
class Outcome:
    """What may not depend on the weather."""

    audits: dict[str, bytes]
    outliers: dict[str, str]
    """Digest of each file."""
    events: dict[str, int]
    steps: int
    weights: Any

    @classmethod
    def of(cls, processes: Processes) -> Outcome:
        """Read it from the run directory."""
        run_dir, summary = processes.run_dir, processes.summary()
        outliers = {
            str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((run_dir / "outliers").rglob("*.parquet"))
        }
        audits = {path.name: path.read_bytes() for path in run_dir.glob("audit*.jsonl")}
        return cls(audits, outliers, summary.events, summary["steps"], processes.checkpoint()["task"])

    def differences(self, other: Outcome) -> list[str]:
        """Names of the parts that aren't the same to the bit."""
        names = ("audits", "outliers", "events", "steps", "weights")
        return [f"other {name}" for name in names if not same(getattr(self, name), getattr(other, name))]


def problems(processes: Processes, record: Record, destination: Path, shared_memory: set[Path]) -> list[str]:
    """What is wrong with a run that has ended well, apart from what it trained."""
    run_dir, summary, found = processes.run_dir, processes.summary(), []
    processes.assert_nothing_is_left()  # no process, no abstract socket
    if not summary["adds_up"] or summary["events_read"] != sum(summary.events.values()):
        found.append(f"the sums: {dict(summary)}")
    if summary["num_quarantined"] or processes.fetcher.files_bad:
        found.append(f"quarantined: {summary['quarantined']}, {processes.fetcher.files_bad} files")
    left = [*run_dir.rglob("*.part"), *(run_dir / "sockets").glob("*"), *_locked_under(run_dir)]
    left += [*(set(Path("/dev/shm").iterdir()) - shared_memory), *run_dir.glob("cache/pool/*/*")]
    found += [f"left: {path}" for path in left]
    newest = max((run_dir / "checkpoints").glob("step-*.pt"))
    copy = destination / "checkpoints" / newest.name
    if not copy.exists() or copy.read_bytes() != newest.read_bytes():
        found.append(f"{newest.name} was not copied")
    return found + told(processes, record)


def told(processes: Processes, record: Record) -> list[str]:
    """What the processes said of each other that the storm doesn't explain."""
    fetcher, found = processes.log("fetcher"), []
    fenced = set()
    for pid in map(int, re.findall(r"decoder (\d+)-\S* hangs", fetcher)):
        fenced.add(pid)
        if silence_s(record, pid) < 0.8 * STALL_TIMEOUT_S:
            found.append(f"decoder {pid} was fenced, silent by our doing for {silence_s(record, pid):.1f} s")
    for line in re.findall(r"unit \d+ failed \d+ time.*", fetcher):
        died = re.search(r"decoder (\d+)-\S* (died|hung)", line)
        if died is None or int(died[1]) not in record.killed | fenced:
            found.append(f"blamed: {line}")
    found += re.findall(r".*(?:skipping|quarantined): .*", fetcher)
    for path in sorted((processes.run_dir / "logs").glob("*.log")):
        found += [f"{path.name}: {error}" for error in tracebacks(path.read_text(errors="replace"))]
    for process in processes.started:
        output = process.output()
        found += tracebacks(output)
        found += re.findall(r".* was killed by (?!SIGKILL|SIGTERM).*", output)
        # A rank that is left alone ends by itself.
        exits = re.findall(r".* ended with exit code.*", output)
        found += [line for line in exits if not ("trainer" in line and "all trainers start again" in line)]
    return found


def tracebacks(text: str) -> list[str]:
    """The last line of each traceback."""
    return [part.lstrip("\n").splitlines()[-1] for part in re.findall(r"^Traceback .*\n(?:[ \t].*\n)*.*", text, re.M)]


def silence_s(record: Record, pid: int) -> float:
    """The longest time that a process was suspended while the fetcher was not; a short breath between is none."""
    spans: list[list[float]] = []
    for start_s, end_s in record.stops.get(pid, []):
        if spans and start_s - spans[-1][1] < 0.5:
            spans[-1][1] = max(end_s, spans[-1][1])
        else:
            spans.append([start_s, end_s])
    fetcher = [stop for one in record.fetchers for stop in record.stops.get(one, [])]
    return max((end - start - _covered_s(start, end, fetcher) for start, end in spans), default=0.0)


def _covered_s(start_s: float, end_s: float, spans: Sequence[Sequence[float]]) -> float:
    """The part of a time that lies in some span."""
    covered_s, reached_s = 0.0, start_s
    for one_s, other_s in sorted(spans):
        covered_s += max(0.0, min(other_s, end_s) - max(one_s, reached_s))
        reached_s = max(reached_s, min(other_s, end_s))
    return covered_s


def _locked_under(folder: Path) -> list[str]:
    """Locks that somebody holds on files and folders of the run."""
    held = {int(line.split()[5 if "->" not in line else 6].split(":")[2]) for line in _lines("/proc/locks")}
    return [f"lock of {path}" for path in [folder, *folder.rglob("*")] if path.stat().st_ino in held]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


# ------------------------------------------------------------------ all of it


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """The address of a server of this folder's files."""

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


def command_of(condition: str, data: Path, url: str, destination: Path, epochs: int) -> list[str]:
    """Arguments of `icestream run`."""
    files = sorted(data.rglob("*.parquet"))
    served = [argument for path in files for argument in ("-i", f"{url}/{path.relative_to(data)}")]
    inputs = served if "web server" in condition else ["-i", str(data)]
    own = settings(*COMMON, *CONDITIONS[condition], f"outputs.destination={destination}")
    return [*inputs, *own, "--decoders", "2", "--epochs", str(epochs)]


def run_storm(folder: Path, seed: int, signals: int, conditions: Sequence[str], *, epochs: int = 8) -> dict[str, Any]:
    """Strike runs, in these conditions by turns, until ``signals`` are sent; the figures of the last line.

    Raises AssertionError at the first problem.
    """
    write_dataset(folder / "data", preset("bench"), DatasetPlan(4_800, 6, seed=1))
    strikes, total = forecast(seed), Record()
    undisturbed: dict[str, Outcome] = {}
    shared_memory = set(Path("/dev/shm").iterdir())
    began_s = time.monotonic()
    print("run | condition | seconds | sessions | signals | missed | steps | result")
    with web_server(folder / "data") as url:
        for number in itertools.count():
            condition = conditions[number % len(conditions)]
            if condition not in undisturbed:
                undisturbed[condition] = _calm(folder / f"calm-{number}", condition, folder / "data", url, epochs)
            here = folder / f"run-{number}"
            here.mkdir()
            processes, record, run_s = Processes(here / "run", here), Record(), time.monotonic()
            command = command_of(condition, folder / "data", url, here / "copies", epochs)
            try:
                Storm(processes, command, strikes, record).blow(signals - total.sent)
                found = problems(processes, record, here / "copies", shared_memory)
                found += Outcome.of(processes).differences(undisturbed[condition])
            finally:
                processes.end()
            total.signals += record.signals
            total.strikes += record.strikes
            total.sessions += record.sessions
            figures = f"{time.monotonic() - run_s:.0f} | {record.sessions} | {record.sent} | {record.missed}"
            steps = undisturbed[condition].steps
            print(f"{number} | {condition} | {figures} | {steps} | {'; '.join(found) or 'the same'}", flush=True)
            assert not found, f"run {number} ({condition}): " + "\n".join(found)
            shutil.rmtree(here)
            if total.sent >= signals:
                return _figures(total, seed, number + 1, time.monotonic() - began_s)
    raise AssertionError


def _calm(folder: Path, condition: str, data: Path, url: str, epochs: int) -> Outcome:
    folder.mkdir()
    processes = Processes(folder / "run", folder)
    try:
        processes.train(*command_of(condition, data, url, folder / "copies", epochs))
        found = problems(processes, Record(), folder / "copies", set(Path("/dev/shm").iterdir()))
        assert not found, found
        return Outcome.of(processes)
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
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"seed {arguments.seed}")
    try:
        figures = run_storm(folder, arguments.seed, arguments.signals, list(CONDITIONS))
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
