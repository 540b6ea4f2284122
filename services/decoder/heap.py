"""Memory of the decoder: one small heap, reused from unit to unit."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from common.heap import keep_freed_memory


def share_one_heap(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Make Arrow and numpy share glibc's heap, and glibc keep freed memory; False with another C library.

    Arrow's own allocator takes 64 MiB at once, ten times a unit. Arrow reads its variable while it is imported: call
    this before.
    """
    environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return keep_freed_memory()
