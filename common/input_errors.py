"""The rule for errors at input files: the bytes, the path or the machine is to blame. Pure.

    bytes     no errno (Arrow, HDF5 and parsers speak so of content), or a place that no file has: quarantined
    path      the file is gone, or its path can't be one: see OwnFaults in own_faults.py
    refused   no permission: likewise
    machine   everything else (EIO, EMFILE, ESTALE, memory, …): tried again and shown; the stream never changes

The fetcher's cache holds copies of its own: what befalls them, but their bytes, is always the machine's.
"""

from __future__ import annotations

import errno
import os

from common.errors import TransientError

LIBRARY_ERRORS = (OSError, MemoryError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError)
"""What Arrow (besides ArrowException), HDF5 and parsers raise at bytes that they can't read, and at the machine."""

OF_THE_BYTES = frozenset({errno.EINVAL, errno.EFBIG, errno.EOVERFLOW, errno.ENODATA})
"""What the kernel says when damaged bytes lead a library to a place that no file has."""
GONE = frozenset({errno.ENOENT})
OF_THE_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
REFUSED = frozenset({errno.EACCES, errno.EPERM})


class MachineError(TransientError):
    """What the kernel says of a file, not its bytes; the text is one line that names the file."""

    def __init__(self, reason: str, number: int, path: str = "") -> None:
        super().__init__(reason, number, path)
        self.number = number
        """The errno."""
        self.path = path
        """Local path of the file, where it is known."""

    def __str__(self) -> str:
        return str(self.args[0])


def machine_errno(error: BaseException) -> int:
    """The errno of an error that says nothing about a file's bytes; 0 if it does."""
    if isinstance(error, MemoryError):  # Arrow's and numpy's are such
        return errno.ENOMEM
    number = error.errno if isinstance(error, OSError) else None
    return number if number and number not in OF_THE_BYTES else 0


def raise_if_machine(error: BaseException, path: str | os.PathLike[str]) -> None:
    """Raise MachineError unless the error says something about the bytes of the file."""
    number = machine_errno(error)
    if number:
        path = os.fspath(path)
        raise MachineError(f"{path}: {os.strerror(number)}", number, path) from error


def one_line(error: BaseException) -> str:
    """The error's text, as it stands in a reason."""
    return " ".join(str(error).split())[:300]
