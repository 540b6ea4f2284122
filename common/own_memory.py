"""A limit on the memory of this process, and whose fault a MemoryError is: the limit's, or the machine's.

The limit is on private memory (RLIMIT_DATA), above what the process has when it is set: neither the arena nor a mapped
file counts. What reaches it is not allocated, so nothing is paged and nothing else is killed.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
from pathlib import Path

_MARGIN_BYTES = 1 << 20
MIB = 1 << 20

_limit_bytes: int | None = None
"""Of all private memory."""
_extra_bytes = 0


def limit_memory(extra_bytes: int) -> None:
    """From now on this process gets at most so much private memory on top of what it has."""
    global _limit_bytes, _extra_bytes
    _extra_bytes = extra_bytes
    _limit_bytes = _private_bytes() + extra_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        _limit_bytes = min(_limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (_limit_bytes, hard))


def asked_for_too_much() -> bool:
    """After a MemoryError: True if the machine has what the limit refused, so that it says something about the data;
    False if the machine refuses memory below the limit, or there is none."""
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
    """Give back what the C library keeps of freed memory: it counts against the limit, in whatever pieces it lies."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def too_much() -> str:
    """What was asked for, for a message: "more than 768 MiB of memory"."""
    return f"more than {_extra_bytes // MIB} MiB of memory"


def _private_bytes() -> int:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
