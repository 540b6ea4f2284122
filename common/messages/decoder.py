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
    """The decoder begins unit k: if it dies now, this unit is blamed."""

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
    """Of the events in the slot: their sources in order, and the microbatches' bounds (common/ragged.py)."""


@dataclass(frozen=True, config=CHECKED)
class Failed:
    """Unit k could not be decoded this time; the decoder will not touch its slot again."""

    k: Count
    lease: Count
    reason: Reason
    gone: Annotated[bool, Field(strict=True)] = False
    """A staged file is not on the disk any more: the unit is not to blame."""
    machine: Annotated[bool, Field(strict=True)] = False
    """Something is wrong with the decoder's machine: the unit is never to blame, and any decoder may try it again."""


@dataclass(frozen=True, config=CHECKED)
class Beat:
    """The decoder makes progress inside a unit."""


@dataclass(frozen=True, config=CHECKED)
class Bye:
    """The decoder leaves and has stopped writing; its leases go back."""


# ------------------------------------------------------------------ dispatcher -> decoder


@dataclass(frozen=True, config=CHECKED)
class Lease:
    """The right to fill ``slot`` with ``unit``."""

    lease: Count
    slot: Count
    unit: Unit


@dataclass(frozen=True, config=CHECKED)
class Retire:
    """Finish what you hold, then say Bye."""


@dataclass(frozen=True, config=CHECKED)
class Stop:
    """The run is over."""
