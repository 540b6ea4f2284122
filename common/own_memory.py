"""Memory limit of this process, and the cause of a MemoryError: the limit, or the machine.

The limit is on private memory (RLIMIT_DATA), on top of the process's memory when it is set: neither the arena nor a
mapped file counts. An allocation above it fails, so nothing is paged and no other process is killed.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
from pathlib import Path

_MARGIN_BYTES = 1 << 20
MIB = 1 << 20

_limit_bytes: int | None = None
"""Limit on all private memory, in bytes."""
_extra_bytes = 0


def limit_memory(extra_bytes: int) -> None:
    """Limit this process's private memory to ``extra_bytes`` more than at present."""
    global _limit_bytes, _extra_bytes
    _extra_bytes = extra_bytes
    _limit_bytes = _private_bytes() + extra_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        _limit_bytes = min(_limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (_limit_bytes, hard))


def asked_for_too_much() -> bool:
    """Cause of a MemoryError: True if the limit refused memory that the machine has, so that the data are the cause;
    False if the machine refuses memory below the limit, or there is no limit."""
    if _limit_bytes is None:
        return False
    room = _limit_bytes - _private_bytes() - _MARGIN_BYTES
    if room <= 0:
        return True
    try:
        mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # reserved, not touched
    except OSError:
        return False
    return True


def free_heap() -> None:
    """Return freed memory that the C library keeps, however fragmented: it counts against the limit."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def too_much() -> str:
    """Refused amount, for a message: "more than 768 MiB of memory"."""
    return f"more than {_extra_bytes // MIB} MiB of memory"


def _private_bytes() -> int:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
