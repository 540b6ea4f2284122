"""Ordered stop of child processes with timeouts; no process is trusted to end."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.supervisor.child import Child

UNKILLABLE_S = 10.0
"""Time after SIGKILL from which a living process counts as in uninterruptible sleep."""


@dataclass(frozen=True)
class StopStep:
    """One stage of stopping: processes that must end before the next stage. No signal: they end by themselves."""

    members: tuple[Child, ...]
    number: signal.Signals | None
    timeout_s: float = math.inf
    """Timeout of this step, if shorter than the general one."""


class Stopping:
    """Sequence of stop steps; kills a process that ignores its signal for ``timeout_s``. A kill isn't trusted."""

    def __init__(self, steps: Sequence[StopStep], timeout_s: float) -> None:
        self._steps = deque(steps)
        self._timeout_s = timeout_s
        self._step = StopStep((), None)
        self._killed = False
        self.patience_ends_s = math.inf

    def pursue(self, now_s: float) -> Sequence[Child]:
        """Take the steps that are due; the processes that were killed and do not end, for which nothing more helps."""
        while True:
            alive = [child for child in self._step.members if child.alive]
            if alive and now_s < self.patience_ends_s:
                return ()
            if alive and self._killed:
                return alive
            if alive and self._step.number is not None:
                for child in alive:
                    child.kill()
                self._killed, self.patience_ends_s = True, now_s + UNKILLABLE_S
                return ()
            if not self._steps:
                self.patience_ends_s = math.inf
                return ()
            self._step, self._killed = self._steps.popleft(), False
            self.patience_ends_s = now_s + min(self._step.timeout_s, self._timeout_s)
            for child in self._step.members:
                if self._step.number is not None:
                    child.send(self._step.number)


def abandon(children: Iterable[Child], timeout_s: float) -> None:
    """Kill all remaining children. There are some only after an unexpected error."""
    alive = [child for child in children if child.alive]
    for child in alive:
        child.send(signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    for child in alive:
        child.wait(deadline_s - time.monotonic())
        child.kill()
        child.reap() if child.wait(UNKILLABLE_S) else child.leave_behind()
