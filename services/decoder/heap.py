"""Keeps freed memory for the next unit, in place of giving it back to the kernel and faulting it in again."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 28


def keep_freed_memory() -> bool:
    """Tell glibc's malloc; False where there is another C library, which then does as it likes.

    By default it maps each large block anew: a decoder's arrays are large, and short-lived. 5 % of its time went there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, _KEPT_BYTES) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    )
