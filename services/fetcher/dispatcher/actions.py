"""The dispatcher's actions: what the fetcher's service is to do next."""

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
    """Files of blocks before this one are not needed any more."""

    before_block: int


@dataclass(frozen=True)
class Quarantine:
    """Something turned out to be bad: count it against the failure budget."""

    bad: tuple[m.Quarantined, ...]


@dataclass(frozen=True)
class Remember:
    """A trainer was accepted whose journal says that these whole files are bad: they stay bad."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Restage:
    """These files are gone from the disk: stage them again, and report each with restaged()."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class EndRun:
    """No trainer needs more units."""


Action: TypeAlias = Send | Fence | Replan | Evict | Quarantine | Remember | Restage | EndRun
