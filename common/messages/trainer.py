"""Messages between a trainer and the dispatcher; Refuse is sent to any peer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.messages.values import (
    CHECKED,
    MAX_LANES,
    BlockQuarantined,
    Count,
    Cursors,
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
    """Request of a trainer for its lanes, from their cursors on.

    Rank r of R takes the lanes l with l mod R = r. All ranks train from one checkpoint, so that each knows the cursors
    of all lanes: the first one to attach sets the start of planning.
    """

    rank: Count
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_LANES)]
    plan_hash: Text
    cursors: Cursors
    """Cursor of every lane, in order."""
    bad_files: FileNumbers = ()
    """Files that are quarantined as a whole, from its journal."""
    source: Source = Source()
    """Part of the inventory that its weights were trained on; an inventory that differs there is another plan."""


@dataclass(frozen=True, config=CHECKED)
class Want:
    """Request for this many more units of a lane."""

    lane: Count
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
    """A checkpoint with these cursors is on disk: nothing before them will be requested again."""

    cursors: Cursors
    """Cursor of every lane, in order; those of other ranks' lanes are ignored."""
    waits: Annotated[bool, Field(strict=True)] = False
    """The trainer can't go on without a unit of this dispatcher: not another rank, or another shard, holds it up."""


@dataclass(frozen=True, config=CHECKED)
class Finished:
    """The trainer needs no more units: the run is over once every lane's trainer has sent this."""


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
    bad_files: FileNumbers = ()
    """Files without units, of all blocks that begin after the lane's previous unit: this unit's k depends on them,
    whichever lane counts them."""
    source: Source = Source()
    content: Digest = ""
    """Digest as in Done; empty for a skipped unit."""


@dataclass(frozen=True, config=CHECKED)
class CommitRequest:
    """Request for a checkpoint: the disk is full of data already trained on, which can be evicted after it."""


@dataclass(frozen=True, config=CHECKED)
class End:
    """The plan has no more units for this lane."""

    lane: Count


@dataclass(frozen=True, config=CHECKED)
class Refuse:
    """Refusal of a peer, with the reason."""

    reason: Reason
    other_inventory: Annotated[bool, Field(strict=True)] = False
    """The peer's checkpoint was trained on other files: it may begin this plan again."""
