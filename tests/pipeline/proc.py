"""What the kernel tells of other processes, which may end at any time; and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 240.0


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none once the process is gone."""
    return read(pid, "stat").rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    """Return True for a process that has not ended; a zombie has."""
    return fields(pid)[:1] not in ([], ["Z"])


def parent(pid: int) -> int:
    """Return the parent; 0 once the process is gone."""
    return int((fields(pid) or ["X", "0"])[1])


def below(*pids: int) -> set[int]:
    """Return processes with all that they have started."""
    parents, found = {pid: parent(pid) for pid in processes()}, set(pids)
    while more := {pid for pid, started_by in parents.items() if started_by in found} - found:
        found |= more
    return found


def command_line(pid: int) -> list[str]:
    return read(pid, "cmdline").split("\0")


def variable(pid: int, name: str) -> str:
    """Return a variable of the environment with which a process was started, or an empty text."""
    entries = [entry.partition("=") for entry in read(pid, "environ").split("\0")]
    return next((value for key, _, value in entries if key == name), "")


def read(pid: int, name: str) -> str:
    """Return a file of /proc/PID; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""
