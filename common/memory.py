"""Memory of this process: what it may take, what is left, what the C library keeps; and threads of libraries."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_PROC = Path("/proc")


class _Files(NamedTuple):
    """File names of a memory control group."""

    limit: str
    used: str
    droppable: tuple[str, str]
    """Keys in memory.stat, of the group and those below it: file pages, which the kernel can drop."""


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_memory_bytes() -> int:
    """Minimum of the bytes left in the machine and in each group. A job's limit may be at any level above a process."""
    fields = {}
    for line in (_PROC / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return min([fields["MemAvailable"] + fields.get("SwapFree", 0), *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    own: dict[str, str] = {}  # path of this process's group by controller; version 2 has one for all, called ""
    for line in (_PROC / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup2" and "" in own:
            yield from _left_from(Path(mount), root, own[""], _VERSION_2)
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            yield from _left_from(Path(mount), root, own["memory"], _VERSION_1)


def _left_from(mount: Path, root: str, path: str, files: _Files) -> Iterator[int]:
    """Bytes left in the group ``path`` and in each visible one above it, up to the mount's ``root``."""
    group = PurePosixPath(path)
    # In a container that sees paths of the host, the mount shows at most its own group.
    below = group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else PurePosixPath()
    for folder in (mount / below, *(mount / parent for parent in below.parents)):
        with suppress(OSError, KeyError, ValueError):  # it can't be read, or its limit is "max": there is none
            limit = int((folder / files.limit).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            droppable = sum(int(stat[name]) for name in files.droppable)
            yield limit - int((folder / files.used).read_text()) + droppable


_MARGIN_BYTES = 1 << 20

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
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def too_much() -> str:
    """Refused amount, for a message: "more than 768 MiB of memory"."""
    return f"more than {_extra_bytes >> 20} MiB of memory"


def _private_bytes() -> int:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 28


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next large block; no effect with another C library.

    By default it maps each large block again: for large and short-lived arrays, page faults take 5 % of the time.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def limit_math_threads(threads: int) -> None:
    """Limit BLAS and OpenMP to ``threads`` threads, unless the user has set another number.

    They read the variables once, while numpy is imported: call this before.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def share_one_heap() -> None:
    """Make Arrow and numpy share glibc's heap, and glibc keep freed memory.

    Arrow's own allocator takes 64 MiB at once, ten times a unit. Arrow reads its variable while it is imported: call
    this before.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_freed_memory()
