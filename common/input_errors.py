"""Classification of errors at input files by their cause: the bytes, the path or the machine. Pure.

    bytes     no errno (content errors of Arrow, HDF5 and parsers), or an offset outside of any file: quarantined
    path      the file is gone, or its path can't be one: see OwnFaults in own_faults.py
    refused   no permission: likewise
    machine   everything else (EIO, EMFILE, ESTALE, memory, …): tried again and shown; the stream never changes

The fetcher's cache holds the run's own copies: except for their bytes, their errors are always the machine's.
"""

from __future__ import annotations

import errno
import os

from common.errors import TransientError

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


def machine_errno(error: BaseException) -> int:
    """Errno of an error that doesn't depend on a file's bytes; 0 for one that does."""
    if isinstance(error, MemoryError):  # those of Arrow and numpy included
        return errno.ENOMEM
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
