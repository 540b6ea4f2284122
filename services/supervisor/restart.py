"""Restart policy: restart or not, and after which pause. Pure: the time is passed in."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

from common.errors import USER_ERROR_EXIT_CODE

HEALTHY_S = 60.0
"""Lifetime (or the longest pause, if shorter) from which a death counts as a new failure."""

MOST_FAILURES = 5
"""Failures in a row with the same error and no step in between, after which a restart can't help."""

_OF_THE_MACHINE = re.compile(
    r"(?:[\w.]*\.)?(?:{names})\b|.*(?:CUDA|NCCL|cuDNN|out of memory|rank \d+)".format(
        names="|".join(
            name
            for name, kind in vars(builtins).items()
            if isinstance(kind, type) and issubclass(kind, OSError | MemoryError)
        )
        + r"|MachineError|TransientError|OutOfMemoryError|AcceleratorError|OperationalError|RankLost|Dist\w*Error"
    )
)
"""Errors whose cause is the machine, a device, the network or another rank: they may pass."""


@dataclass(frozen=True)
class Ended:
    """Verdict: the process had nothing left to do."""


@dataclass(frozen=True)
class UserError:
    """Verdict: a restart would end the same way; the user has to change something."""


@dataclass(frozen=True)
class Restart:
    """Verdict: the process died; restart it after a pause."""

    after_s: float


Verdict = Ended | UserError | Restart


class RestartPolicy:
    """Restart history of one process. Pauses double from ``min_s`` to ``max_s`` while it keeps dying early."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min(min_s, max_s)
        self._max_s = max_s
        self._pause_s = self._min_s
        self._started_s = 0.0
        self._starts = 0
        self._returns = 0

    @property
    def restarts(self) -> int:
        """Number of starts after the first."""
        return max(0, self._starts - 1 - self._returns)

    def returns(self) -> None:
        """Record that a process that left in good order is wanted again: its next start is no restart."""
        self._returns += 1

    def started(self, now_s: float) -> None:
        """Record a start or restart."""
        self._starts += 1
        self._started_s = now_s

    def ended(self, exit_code: int, now_s: float) -> Verdict:
        """Verdict on a process that ended with ``exit_code`` (below 0: minus the signal that killed it)."""
        if exit_code == 0:
            return Ended()
        if exit_code == USER_ERROR_EXIT_CODE:
            return UserError()
        return self.died(now_s)

    def died(self, now_s: float) -> Restart:
        """Pause for a process that has to be restarted, whatever its exit code."""
        if now_s - self._started_s > min(self._max_s, HEALTHY_S):
            self._pause_s = self._min_s
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._max_s)
        return Restart(after_s=pause_s)


class RepeatedFailure:
    """Failures of one service in a row with the same error and without progress of the training in between.

    Errors of the machine don't count, since they may pass, nor do kills.
    """

    def __init__(self) -> None:
        self._error = ""
        self._furthest_step = 0
        self.times = 0

    def again(self, exit_code: int, error: str, step: int) -> bool:
        """Record a failure with ``error`` (a traceback's last line) at ``step``; True if a restart can't help."""
        if exit_code <= 0 or not error or _OF_THE_MACHINE.match(error):
            return False
        is_same = without_numbers(error) == self._error and step <= self._furthest_step
        self.times = self.times + 1 if is_same else 1
        self._error = without_numbers(error)
        self._furthest_step = max(self._furthest_step, step)
        return self.times >= MOST_FAILURES


def without_numbers(text: str) -> str:
    """Text by which an error is known again: its numbers may be others each time."""
    return re.sub(r"\d+", "#", text)
