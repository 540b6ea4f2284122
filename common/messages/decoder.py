"""Messages between a decoder and the dispatcher."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.messages.values import (
    CHECKED,
    Count,
    Digest,
    Layout,
    Reason,
    Tally,
    Unit,
)

# ------------------------------------------------------------------ decoder -> dispatcher


@dataclass(frozen=True, config=CHECKED)
class Hello:
    """A decoder is ready for ``credit`` leases."""

    credit: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=CHECKED)
class Decoding:
    """The decoder begins unit k: if it dies now, this unit is taken as the cause."""

    k: Count
    lease: Count


@dataclass(frozen=True, config=CHECKED)
class Done:
    """The slot of unit k is filled; the decoder will not touch it again."""

    k: Count
    lease: Count
    layout: Layout
    tally: Tally
    content: Digest = ""
    """Digest of the events in the slot: their sources in order, and the microbatches' bounds (common/ragged.py)."""


@dataclass(frozen=True, config=CHECKED)
class Failed:
    """Unit k could not be decoded this time; the decoder will not touch its slot again."""

    k: Count
    lease: Count
    reason: Reason
    gone: Annotated[bool, Field(strict=True)] = False
    """A staged file is no longer on the disk: the unit is not the cause."""
    machine: Annotated[bool, Field(strict=True)] = False
    """Fault of the decoder's machine: the unit is never the cause, and any decoder may retry it."""


@dataclass(frozen=True, config=CHECKED)
class Beat:
    """The decoder makes progress inside a unit."""


@dataclass(frozen=True, config=CHECKED)
class Bye:
    """The decoder leaves and has stopped writing; its leases are returned. Or a trainer leaves."""


# ------------------------------------------------------------------ dispatcher -> decoder


@dataclass(frozen=True, config=CHECKED)
class Lease:
    """Right to fill ``slot`` with ``unit``."""

    lease: Count
    slot: Count
    unit: Unit
    failures: Count = 0
    """Times that the unit has failed: then the decoder tries its parts one at a time first."""


@dataclass(frozen=True, config=CHECKED)
class Retire:
    """Request to finish the leased units and then send Bye."""


@dataclass(frozen=True, config=CHECKED)
class Stop:
    """End of the run."""
