"""Locks between processes that the kernel frees when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MODE = 0o600


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None if somebody else holds it.

    The file is made if need be. Its holder may unlink it: whoever opened it before looks for it anew.
    Raises FileNotFoundError if its folder is gone.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_the_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder has unlinked it


@contextmanager
def locked(path: Path, wait: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock, and unlink its file at the end. False, without it, once ``wait`` says so.

    ``wait`` is called while somebody else holds the lock: it pauses, and returns False to give up.
    """
    while (descriptor := try_lock(path)) is None:
        if not wait():
            yield False
            return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # while it is held, or another's new file would go
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """True if somebody holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
