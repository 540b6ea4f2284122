"""Actions of the dispatcher, which the fetcher's service carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from common import messages as m


@dataclass(frozen=True)
class Send:
    """Send a message to a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Fence:
    """Kill this decoder: it is hung with units in work. Report back with fence_failed() if that can't be done, and
    before it with excuse() if the process is suspended."""

    peer: str


@dataclass(frozen=True)
class Replan:
    """Plan again from this cursor's block on, and add its units from the block's first one."""

    cursor: m.Cursor


@dataclass(frozen=True)
class Evict:
    """Delete the files of blocks before this one: they are not needed any more."""

    before_block: int


@dataclass(frozen=True)
class Quarantine:
    """Count a bad input against the failure budget."""

    bad: tuple[m.Quarantined, ...]


@dataclass(frozen=True)
class Remember:
    """Keep these whole files as bad, which the journal of an accepted trainer lists."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Restage:
    """Stage files again that are gone from the disk, and report each with restaged()."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class EndRun:
    """End the run: no trainer needs more units."""


Action: TypeAlias = Send | Fence | Replan | Evict | Quarantine | Remember | Restage | EndRun
