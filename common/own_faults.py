"""Classification of file system errors: the fault of one file, or of the machine.

Applies to files that are used in place; see input_errors.py for the rest of the rule.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from common.input_errors import GONE, OF_THE_PATH, REFUSED

TRIES = 3
PATIENCE_S = 3.0
"""Minimum refusals of a file, and minimum time between the first and the last, before it can be its own fault."""
FORGET_S = 600.0
"""Maximum time between two refusals that count together. Much longer than between tries of a refused file, also where
many decoders take turns."""
_OTHERS = 8
"""Maximum files of its folder that are tried."""


class OwnFaults:
    """Record of files that could be read, and of refused ones. Used by many threads.

    gone      its own fault if its folder still holds something: an empty or missing one may be a file system that is
              not mounted now
    path      (a loop of links, a file among its folders, …) its own fault
    refused   its own fault if that lasts while another file can be opened: the one read last of that file system, or
              one in its folder. Else permissions of the whole place have changed (for example an expired ticket)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._refused: dict[Path, tuple[int, float, float]] = {}  # -> times, and when it was the first and the last
        self._good: dict[int, Path] = {}  # device -> the file that was read last

    def worked(self, path: Path) -> None:
        """Record that the file could be read."""
        device = _device(path)
        with self._mutex:
            self._good[device] = path
            self._refused.pop(path, None)

    def is_own(self, path: Path, number: int) -> bool:
        """True if the errno ``number`` at that path is the file's own fault. Call it once for each try."""
        if number in GONE:
            return any(_names(path.parent))
        return number in OF_THE_PATH or (number in REFUSED and self._is_refused_alone(path))

    def _is_refused_alone(self, path: Path) -> bool:
        now_s, device = self._clock(), _device(path)
        with self._mutex:
            times, first_s, last_s = self._refused.get(path, (0, now_s, now_s))
            if now_s - last_s > FORGET_S:
                times, first_s = 0, now_s
            self._refused[path] = times + 1, first_s, now_s
            last_good = self._good.get(device, path)
        if times + 1 < TRIES or now_s - first_s < PATIENCE_S:
            return False
        others = (path.parent / name for name in islice(_names(path.parent), _OTHERS))
        return any(other != path and _opens(other) for other in (last_good, *others))


def _names(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def _opens(path: Path) -> bool:
    """True if it is a file that can be opened at present."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _device(path: Path) -> int:
    """Device of the file, or of the nearest visible folder above it."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return place.stat().st_dev
    return -1
