"""Messages between a trainer and the dispatcher; Refuse is sent to any peer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.messages.values import (
    CHECKED,
    MAX_TRAINERS,
    BlockQuarantined,
    Count,
    Cursor,
    Digest,
    FileNumbers,
    Layout,
    Reason,
    Source,
    Tally,
    Text,
)

# ------------------------------------------------------------------ trainer -> dispatcher


@dataclass(frozen=True, config=CHECKED)
class Attach:
    """Request of one of the trainers of a shard for its units, from a cursor on.

    All of them get every unit, and train from one checkpoint: the first one to attach sets the start of planning.
    """

    rank: Count
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_TRAINERS)]
    plan_hash: Text
    cursor: Cursor
    bad_files: FileNumbers = ()
    """Files that are quarantined as a whole, from its journal."""
    source: Source = Source()
    """Part of the inventory that its weights were trained on; an inventory that differs there is another plan."""


@dataclass(frozen=True, config=CHECKED)
class Want:
    """Request for this many more units."""

    units: Annotated[int, Field(strict=True, ge=1, le=1024)]


@dataclass(frozen=True, config=CHECKED)
class Release:
    """The trainer has copied unit k out of its slot."""

    k: Count


@dataclass(frozen=True, config=CHECKED)
class Reject:
    """The slot of unit k does not hold what was delivered: decode it again."""

    k: Count
    reason: Reason


@dataclass(frozen=True, config=CHECKED)
class Committed:
    """A checkpoint with this cursor is on disk: nothing before it will be requested again."""

    cursor: Cursor
    waits: Annotated[bool, Field(strict=True)] = False
    """The trainer can't go on without a unit of this dispatcher: not another rank, or another shard, holds it up."""


@dataclass(frozen=True, config=CHECKED)
class Finished:
    """The trainer needs no more units: the run is over once every trainer has sent this."""


# ------------------------------------------------------------------ dispatcher -> trainer


@dataclass(frozen=True, config=CHECKED)
class DeliveredUnit:
    """Unit k is in ``slot``; without a slot (-1) it was skipped, for the reason in ``tally.bad``."""

    k: Count
    epoch: Count
    block: Count
    block_first_unit: Count
    slot: Annotated[int, Field(strict=True, ge=-1)]
    lease: Count
    layout: Layout
    tally: Tally
    block_quarantined: BlockQuarantined
    """Files of the block without units (sent with the block's first unit)."""
    source: Source = Source()
    content: Digest = ""
    """Digest as in Done; empty for a skipped unit."""


@dataclass(frozen=True, config=CHECKED)
class CommitRequest:
    """Request for a checkpoint: the disk is full of data already trained on, which can be evicted after it."""


@dataclass(frozen=True, config=CHECKED)
class End:
    """The plan has no more units."""


@dataclass(frozen=True, config=CHECKED)
class Refuse:
    """Refusal of a peer, with the reason."""

    reason: Reason
    other_inventory: Annotated[bool, Field(strict=True)] = False
    """The peer's checkpoint was trained on other files: it may begin this plan again."""
