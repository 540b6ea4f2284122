"""Watches from outside what the processes of a run hold: the arena's memory, descriptors and sockets."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from runs import Processes

T = TypeVar("T")

_ARENA = "/memfd:icestream-arena"
_DESCRIPTORS = 2  # the arena's own, and the copy that Python's mmap keeps
_LOOK_S = 0.1


@dataclass
class Holding:
    """What one process held of arenas at one moment."""

    mapped_bytes: list[int]
    """Size of each mapping of an arena."""
    descriptor_bytes: list[int]
    """Size of the arena behind each descriptor."""
    resident_bytes: int
    """Shared memory that the process has touched."""


@dataclass
class Watch:
    """Looks at the processes of a run again and again; `assert_bounded` and `assert_gone` say what it saw."""

    processes: Processes
    arena_bytes: int
    seen: Counter[str] = field(default_factory=Counter)
    """How often a process that held the arena was looked at, by verb."""
    sockets: set[str] = field(default_factory=set)
    """Names of abstract sockets that processes of the run had open."""
    _looked_s: float = 0.0

    def until(self, event: Callable[[], T | None]) -> Callable[[], T | None]:
        """The same event for `Processes.wait_for`, with a look at every poll."""

        def looked() -> T | None:
            self.look()
            return event()

        return looked

    def look(self) -> None:
        """Check the promise (4) at this moment: every process has one arena, of the size that was agreed on."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        self._looked_s = time.monotonic()
        names = _abstract_sockets()
        for verb in ("fetcher", "decoder", "trainer"):
            for pid in self.processes.pids(verb):
                self.sockets |= {names[inode] for inode in _socket_inodes(pid) if inode in names}
                holding = _holding(pid)
                if holding is None or not holding.mapped_bytes:
                    continue
                self.seen[verb] += 1
                assert holding.mapped_bytes == [self.arena_bytes], f"{verb} {pid} maps {holding}"
                assert set(holding.descriptor_bytes) <= {self.arena_bytes}, f"{verb} {pid} has open {holding}"
                assert len(holding.descriptor_bytes) <= _DESCRIPTORS, f"{verb} {pid} has open {holding}"
                assert holding.resident_bytes <= self.arena_bytes, f"{verb} {pid} has touched {holding}"

    def assert_looked(self) -> None:
        """The arena was seen in a fetcher, a decoder and a trainer."""
        assert self.seen.keys() == {"fetcher", "decoder", "trainer"}, self.seen
        assert self.sockets

    def assert_gone(self) -> None:
        """No abstract socket that was seen is left, and no process has the run directory in its command line."""
        run_dir = str(self.processes.run_dir).encode()
        self.processes.wait_for(lambda: not self.sockets & set(_abstract_sockets().values()), "the end of its sockets")
        assert not [pid for pid in _all_pids() if run_dir in _read(pid, "cmdline") and _state(pid) not in "ZX"]
        assert not list(self.processes.run_dir.rglob("*.part"))
        assert not list((self.processes.run_dir / "sockets").glob("*"))


def _state(pid: int) -> str:
    """Letter of the process's state, X once it is gone."""
    fields = _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[0] if fields else "X"


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _holding(pid: int) -> Holding | None:
    """What a process holds now; None if it is gone, or going."""
    maps, before = _arena_maps(pid), None
    while maps != before:  # it is read in pieces: one that went while another came would be seen beside it
        maps, before = _arena_maps(pid), maps
    resident = re.search(r"^RssShmem:\s+(\d+) kB$", _read(pid, "status").decode(), re.M)
    descriptors = [size for size in (_arena_bytes(path) for path in _descriptors(pid)) if size is not None]
    if resident is None or _state(pid) in "ZX":
        return None
    mapped = [line.split()[0].split("-") for line in maps]
    return Holding([int(end, 16) - int(start, 16) for start, end in mapped], descriptors, int(resident[1]) * 1024)


def _arena_maps(pid: int) -> list[str]:
    return [line for line in _read(pid, "maps").decode().splitlines() if _ARENA in line]


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _arena_bytes(descriptor: Path) -> int | None:
    if not _link(descriptor).startswith(_ARENA):
        return None
    try:
        return descriptor.stat().st_size
    except (FileNotFoundError, ProcessLookupError):
        return None


def _socket_inodes(pid: int) -> list[str]:
    links = [_link(descriptor) for descriptor in _descriptors(pid)]
    return [link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")]


def _abstract_sockets() -> dict[str, str]:
    """Inode -> name of every abstract socket of icestream's on this machine."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {words[6]: words[7] for words in lines if len(words) == 8 and words[7].startswith("@icestream-")}
