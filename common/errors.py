"""The expected kinds of error, and what the cause of an error at a file is: the bytes, the path or the machine."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

USER_ERROR_EXIT_CODE = 2
TRY_AGAIN_EXIT_CODE = 75
"""Exit code of a node that ends because of another one, EX_TEMPFAIL of sysexits.h: start all nodes again."""


class IcestreamError(Exception):
    """Expected error: its text is one line for the user, shown without a traceback."""


class BadInputError(IcestreamError):
    """Wrong file, value or setting: the text names it, the expected value and the remedy."""


class BadInputsError(BadInputError):
    """Several mistakes at once, each one line."""

    def __init__(self, what: str, lines: Sequence[str]) -> None:
        super().__init__(f"{what} has {len(lines)} mistakes: " + "; ".join(lines))
        self.title = f"{what} has {len(lines)} mistakes"
        self.lines = tuple(lines)


class TransientError(IcestreamError):
    """Temporary error: retried with jitter."""


class TryAgainError(IcestreamError):
    """Another node is gone, or was started again without this one: all nodes have to be started again."""


def missing_extra(what: str, extra: str, otherwise: str = "") -> BadInputError:
    """Error of a feature whose optional packages are not installed, with the command that installs them.

    ``otherwise``: what to do without them, after "or".
    """
    or_else = f", or {otherwise}" if otherwise else ""
    # Not by the package's name alone: in an index of packages that may be somebody else's.
    return BadInputError(f"{what} needs: pip install -c constraints.txt '.[{extra}]' (in the clone){or_else}")


LIBRARY_ERRORS = (OSError, MemoryError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError)
"""Errors of Arrow (besides ArrowException), HDF5 and parsers for unreadable bytes, and for the machine."""

OF_THE_BYTES = frozenset({errno.EINVAL, errno.EFBIG, errno.EOVERFLOW, errno.ENODATA})
"""Kernel's error numbers when damaged bytes lead a library to an offset outside of any file."""
GONE = frozenset({errno.ENOENT})
OF_THE_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
REFUSED = frozenset({errno.EACCES, errno.EPERM})


class MachineError(TransientError):
    """Error of the kernel for a file, not of its bytes; the text is one line that names the file."""

    def __init__(self, reason: str, number: int, path: str = "") -> None:
        super().__init__(reason, number, path)
        self.number = number
        """Errno of the error."""
        self.path = path
        """Local path of the file, if known."""

    def __str__(self) -> str:
        return str(self.args[0])


_NO_THREAD = "Unknown error: Failed to launch worker thread"
"""Begin of Arrow's text where the kernel starts no thread, for lack of memory or by a limit; it has no number.
Texts of other kinds quote bytes of a file."""


def machine_errno(error: BaseException) -> int:
    """Errno of an error that doesn't depend on a file's bytes; 0 for one that does."""
    if isinstance(error, MemoryError):  # those of Arrow and numpy included
        return errno.ENOMEM
    if type(error).__name__ == "ArrowException" and str(error).startswith(_NO_THREAD):
        return errno.EAGAIN
    number = error.errno if isinstance(error, OSError) else None
    return number if number and number not in OF_THE_BYTES else 0


def raise_if_machine(error: BaseException, path: str | os.PathLike[str]) -> None:
    """Raise MachineError unless the error is caused by the bytes of the file."""
    number = machine_errno(error)
    if number:
        path = os.fspath(path)
        raise MachineError(f"{path}: {reason_of(number)}", number, path) from error


def reason_of(number: int | None) -> str:
    """Text of an errno, with what to do where the machine's answer doesn't tell."""
    return os.strerror(number or 0) + (" (raise the limit: ulimit -n)" if number == errno.EMFILE else "")


def one_line(error: BaseException) -> str:
    """Text of the error in one line, as used in a reason."""
    return " ".join(str(error).split())[:300]


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
