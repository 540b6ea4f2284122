"""The guard of the fast tests sees every way to start a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from no_processes import GUARD, ProcessStarted, guarded

NOTHING = [sys.executable, "-c", ""]
WAYS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(NOTHING, check=False),
    "fork": os.fork,
    "posix_spawn": lambda: os.posix_spawn(sys.executable, NOTHING, {}),
    "system": lambda: os.system("true"),
    "exec": lambda: os.execv(sys.executable, NOTHING),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_is_refused_before_it_starts(way: str) -> None:
    with pytest.raises(ProcessStarted, match=r"mark the test with pytest\.mark\.process"), GUARD.watch():
        WAYS[way]()


def test_a_test_that_swallows_the_refusal_fails_all_the_same() -> None:
    with pytest.raises(ProcessStarted, match=r"subprocess\.Popen"), GUARD.watch(), contextlib.suppress(Exception):
        subprocess.run(NOTHING, check=False)


@pytest.mark.process
def test_the_guard_is_on_in_every_test_without_the_marker(request: pytest.FixtureRequest) -> None:
    marked = guarded(request.node)
    next(marked)
    subprocess.run(NOTHING, check=True)
    unmarked = guarded(NoMarkers())  # type: ignore[arg-type]
    next(unmarked)
    with contextlib.suppress(ProcessStarted):
        subprocess.run(NOTHING, check=False)
    with pytest.raises(ProcessStarted):
        next(unmarked)


class NoMarkers:
    """A test of which no marker is known."""

    def get_closest_marker(self, name: str) -> None:
        return None
