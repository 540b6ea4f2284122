"""Kind of a file, detected from its first bytes: the suffix may be wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

from common.errors import BadInputError

FileKind = Literal["Parquet", "HDF5"]

_PARQUET = b"PAR1"
_PARQUET_ENCRYPTED = b"PARE"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_FIRST_PLACE = 512
"""First offset of HDF5's signature after a user block: 512, 1024, 2048, … bytes; without one it is at 0."""


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def file_kind(path: Path) -> FileKind:
    """Kind of a local file. Raises OSError, and BadInputError that shows the file's first bytes."""
    with open_file(path) as file:
        return kind_of(file)


def open_file(path: Path) -> BinaryIO:
    """Regular file, open for reading. Never waits for a pipe's writer. Raises OSError, BadInputError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(status: os.stat_result) -> None:
    """Raise BadInputError, naming the kind, unless it is a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise BadInputError(f"{_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}; expected a file")


def kind_of(file: BinaryIO) -> FileKind:
    """Kind of an open file; its position changes. Raises BadInputError that shows the file's first bytes."""
    head = file.read(8)
    if head.startswith(_PARQUET):
        return "Parquet"
    if head.startswith(_PARQUET_ENCRYPTED):
        raise BadInputError("an encrypted Parquet file; decrypt it first")
    if head == _HDF5:
        return "HDF5"
    if not head:
        raise BadInputError("the file is empty; expected Parquet or HDF5")
    size_bytes = file.seek(0, 2)
    place = _HDF5_FIRST_PLACE
    while place + len(_HDF5) <= size_bytes:
        file.seek(place)
        if file.read(len(_HDF5)) == _HDF5:
            return "HDF5"
        place *= 2
    raise BadInputError(f"truncated, or neither Parquet nor HDF5: the file begins with {head!r}")
