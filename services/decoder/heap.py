"""Memory of the decoder: one small heap, reused from unit to unit."""

from __future__ import annotations

import ctypes
import os
from collections.abc import MutableMapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 28


def share_one_heap(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Make Arrow and numpy share glibc's heap, and glibc keep freed memory; False with another C library.

    Arrow's own allocator takes 64 MiB at once, ten times a unit. By default glibc maps each large block again: a
    decoder's arrays are large and short-lived, and page faults for them took 5 % of its time. Arrow reads its variable
    while it is imported: call this before.
    """
    environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, _KEPT_BYTES) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    )
