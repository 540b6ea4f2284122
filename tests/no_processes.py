"""The guard of the marker `process`: a test without it that starts a process fails, whatever becomes of the error."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

EVENTS = frozenset(
    ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "subprocess.Popen")
)
"""Audit events of CPython before a process is started."""
_LISTS_FONTS = "fc-list"
"""What matplotlib starts at the first plot on a machine, whichever test that is."""


class ProcessStarted(RuntimeError):
    """A test that isn't marked was about to start a process."""


class Guard:
    """The audit hook. There is one, since a hook can't be removed."""

    def __init__(self) -> None:
        self._is_on = False
        self._attempts: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._is_on and event in EVENTS and not (arguments and str(arguments[0]).endswith(_LISTS_FONTS)):
            self._attempts.append(f"{event}{arguments!r}"[:300])
            raise ProcessStarted(f"{self._attempts[-1]}: mark the test with pytest.mark.process")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """No process starts inside. Raises ProcessStarted at the end if the code inside has caught the error."""
        before = self._is_on, self._attempts
        attempts: list[str] = []
        self._is_on, self._attempts = True, attempts
        try:
            yield
        finally:
            self._is_on, self._attempts = before
        if attempts:
            raise ProcessStarted("; ".join(attempts))


GUARD = Guard()
sys.addaudithook(GUARD)


def guarded(item: pytest.Item) -> Generator[None]:
    """One phase of a test, in which no process may start unless the test has the marker."""
    if item.get_closest_marker("process"):
        yield
    else:
        with GUARD.watch():
            yield
