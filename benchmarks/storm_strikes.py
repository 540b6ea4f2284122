"""Seeded choices of a storm of signals, and their delivery to the processes of one run (benchmarks/storm.py)."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pipeline"))

from runs import ICESTREAM, Process, Processes

STALL_TIMEOUT_S = 3.0
STRIKES_PER_S = 4.0
STORM_S = 60.0
"""Longest time for which a run is struck."""
SPREAD_S = 0.3
"""Time within which several processes are suspended: a machine's containers are paused one after the other, and
resumed in another order."""
END_S = 180.0
"""Time in which the run has to finish after its last strike."""
_POLL_S = 0.01

VERBS = {"run": 2, "outputs": 4, "trainer": 6, "fetcher": 15, "decoder": 40}
"""Relative frequency of strikes for each process."""
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

STILL_ACTIVE = ("the run is in use by", "is already running in this", "uses this cache directory")
"""Errors of a start while processes of the former session have not ended yet."""


# ------------------------------------------------------------------ choices


@dataclass(frozen=True)
class Strike:
    """Strike of the storm. Its processes are chosen when it is due."""

    pause_s: float
    """Time after the preceding strike."""
    kind: str
    verb: str
    coins: tuple[float, ...]
    """Random numbers in [0, 1): the first selects one process of a verb, all of them select "some"."""
    hold_s: float
    """Time from a SIGSTOP to the signal that ends it."""


NOTHING = Strike(math.inf, "kill", "run", (0.0,), 0.0)


def forecast(seed: int) -> Iterator[Strike]:
    """Endless strikes of a storm. Each uses the same number of random numbers."""
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
    """Process of the run, by a descriptor that never refers to another process."""

    pid: int
    verb: str
    pidfd: int


@dataclass
class Record:
    """Record of the storm's signals to a run's processes."""

    signals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Numbers of signals by verb and signal."""
    strikes: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    """Strikes at a process that did not exist."""
    sessions: int = 0
    """Number of starts of `icestream run`."""
    killed: set[int] = field(default_factory=set)
    """Processes that were killed, or with a killed parent."""
    stops: dict[int, list[list[float]]] = field(default_factory=dict)
    """Begin and end of each suspension, by process."""
    fetchers: set[int] = field(default_factory=set)

    @property
    def sent(self) -> int:
        """Number of all signals."""
        return self.signals.total()

    def note(self, victim: Victim, number: signal.Signals, now_s: float) -> None:
        """Record a sent signal."""
        self.signals[victim.verb, number.name] += 1
        stops = self.stops.setdefault(victim.pid, [])
        if victim.verb == "fetcher":
            self.fetchers.add(victim.pid)
        if number is signal.SIGSTOP:
            stops.append([now_s, math.inf])
            return
        for stop in stops:  # one signal ends several suspensions
            stop[1] = min(stop[1], now_s)


class Storm:
    """Storm on one run: starts it, and strikes it in blow()."""

    def __init__(
        self, processes: Processes, give: Callable[[], Process], strikes: Iterator[Strike], record: Record
    ) -> None:
        self.record = record
        self._processes = processes
        self._give = give
        """Function that starts `icestream run`."""
        self._strikes = strikes
        self._due: list[tuple[float, int, Victim, signal.Signals]] = []
        """Heap of the beginnings and ends of suspensions."""
        self._order = itertools.count()
        self._victims: dict[int, Victim] = {}
        self._top = give()
        record.sessions += 1

    def blow(self, signals: int) -> None:
        """Strike until ``signals`` are sent, the time is over or the run has ended; then wait for its end.

        Raises AssertionError if the run doesn't end, or fails.
        """
        began_s = now_s = time.monotonic()
        coming = next(self._strikes, NOTHING)
        next_s = now_s + coming.pause_s
        while not self._has_finished():
            now_s = time.monotonic()
            blows = now_s < began_s + STORM_S and self.record.sent < signals
            while self._due and self._due[0][0] <= now_s:
                _, _, victim, number = heapq.heappop(self._due)
                self._send(victim, number)
            if blows and now_s >= next_s:
                self._strike(coming, now_s)
                coming = next(self._strikes, NOTHING)
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
        self._top = self._give()
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
        spread_s = SPREAD_S if len(victims) > 1 else 0.0
        for index, victim in enumerate(victims):
            if strike.kind.startswith("kill"):
                self._send(victim, signal.SIGKILL)
                continue
            early, late = (strike.coins[(index + shift) % len(strike.coins)] for shift in (0, 1))
            self._later(now_s + early * spread_s, victim, signal.SIGSTOP)
            self._later(now_s + spread_s + strike.hold_s + late * spread_s, victim, end)

    def _later(self, due_s: float, victim: Victim, number: signal.Signals) -> None:
        heapq.heappush(self._due, (due_s, next(self._order), victim, number))

    def _look(self) -> list[Victim]:
        """Living processes, the oldest first."""
        pids = self._processes.pids()
        for pid in pids:
            if pid not in self._victims:
                with suppress(ProcessLookupError, FileNotFoundError, ValueError, IndexError):
                    pidfd = os.pidfd_open(pid)
                    self._victims[pid] = Victim(pid, _verb(pid), pidfd)
        return [self._victims[pid] for pid in pids if pid in self._victims]

    def _send(self, victim: Victim, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self.record.killed.add(victim.pid)
            if victim.pid == self._top.pid:  # its children end with it
                self.record.killed |= {other.pid for other in self._look()}
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(victim.pidfd, number)
            self.record.note(victim, number, time.monotonic())


def _verb(pid: int) -> str:
    """Verb of a process of icestream. Raises ValueError or IndexError if it has none any more."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index(ICESTREAM[-1]) + 1]
