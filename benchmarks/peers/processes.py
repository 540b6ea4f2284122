"""Memory and processor time of all processes of one measured program, and what it leaves behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

MARK = "PEERS_MEASUREMENT"
"""Environment variable that every process of a measurement inherits, wherever its parent is."""

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE_S = 0.2


def processes_of(mark: str) -> Iterator[int]:
    """Processes with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)
            except OSError:
                continue


def cpu_times_s(mark: str) -> dict[int, float]:
    """Processor time of each living process, with that of its ended children, in seconds."""
    found = {}
    for pid in processes_of(mark):
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = sum(map(int, fields[11:15])) / _TICKS
    return found


def cpu_between_s(before: dict[int, float], after: dict[int, float]) -> float:
    """Processor time between two looks; of processes that ended in between, that after the first look is missing."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def pss_bytes(mark: str) -> int:
    """Memory of all processes: what several share is counted once (PSS)."""
    total = 0
    for pid in processes_of(mark):
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class PeakMemory:
    """Largest memory of a measurement, sampled by a thread."""

    def __init__(self, mark: str) -> None:
        self.bytes = 0
        self._mark = mark
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.bytes = max(self.bytes, pss_bytes(self._mark))


def shared_memory() -> dict[str, int]:
    """Bytes of each file in shared memory."""
    found = {}
    for path in Path("/dev/shm").rglob("*"):
        try:
            found[str(path)] = path.stat().st_blocks * 512
        except OSError:
            continue
    return found
