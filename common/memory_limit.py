"""Memory still available to this process: that of the machine, limited by all its control groups."""

from __future__ import annotations

from collections.abc import Iterator
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
    own = _own_groups((_PROC / "self" / "cgroup").read_text())
    for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup2" and "" in own:
            yield from _left_from(Path(mount), root, own[""], _VERSION_2)
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            yield from _left_from(Path(mount), root, own["memory"], _VERSION_1)


def _own_groups(text: str) -> dict[str, str]:
    """Path of this process's group by controller; version 2 has one for all, called ""."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _left_from(mount: Path, root: str, path: str, files: _Files) -> Iterator[int]:
    """Bytes left in the group ``path`` and in each visible one above it, up to the mount's ``root``."""
    group = PurePosixPath(path)
    # In a container that sees paths of the host, the mount shows at most its own group.
    below = group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else PurePosixPath()
    for folder in (mount / below, *(mount / parent for parent in below.parents)):
        left = _left_in(folder, files)
        if left is not None:
            yield left


def _left_in(folder: Path, files: _Files) -> int | None:
    """Bytes left in one group; None without a limit, or if it can't be read."""
    try:
        limit = (folder / files.limit).read_text().strip()
        if limit == "max":
            return None
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        droppable = sum(int(stat[name]) for name in files.droppable)
        return int(limit) - int((folder / files.used).read_text()) + droppable
    except (OSError, KeyError, ValueError):
        return None
