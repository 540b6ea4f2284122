"""The guard of the fast tests sees every way to start a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from no_processes import GUARD, ProcessStarted

NOTHING = [sys.executable, "-c", ""]
WAYS: list[Callable[[], object]] = [
    lambda: subprocess.run(NOTHING, check=False),
    os.fork,
    lambda: os.posix_spawn(sys.executable, NOTHING, {}),
    lambda: os.system("true"),
    lambda: os.execv(sys.executable, NOTHING),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_process_is_refused_before_it_starts_and_a_test_that_swallows_the_refusal_fails(
    way: Callable[[], object],
) -> None:
    with pytest.raises(ProcessStarted, match=r"mark the test with pytest\.mark\.process"), GUARD.watch():
        way()
    with pytest.raises(ProcessStarted), GUARD.watch(), contextlib.suppress(ProcessStarted):
        way()
