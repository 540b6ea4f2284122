"""Messages between a trainer and the dispatcher; Refuse goes to any peer."""

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
    """A trainer wants its lanes from their cursors on.

    Rank r of R takes the lanes l with l mod R = r. All ranks train from one checkpoint, so that each knows the cursors
    of all lanes: the first to come says where planning begins.
    """

    rank: Count
    ranks: Annotated[int, Field(strict=True, ge=1, le=MAX_LANES)]
    plan_hash: Text
    cursors: Cursors
    """Of every lane, in order."""
    bad_files: FileNumbers = ()
    """Whole files that its journal says are quarantined."""
    source: Source = Source()
    """What its weights have seen data of; an inventory that differs there is another plan."""


@dataclass(frozen=True, config=CHECKED)
class Want:
    """The trainer takes this many more units of a lane."""

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
    """A checkpoint with these cursors is on disk: nothing before them will be asked for again."""

    cursors: Cursors
    """Of every lane, in order; those of other ranks' lanes are not looked at."""


@dataclass(frozen=True, config=CHECKED)
class Finished:
    """The trainer needs no more units: the run is over once every lane's trainer says so."""


# ------------------------------------------------------------------ dispatcher -> trainer


@dataclass(frozen=True, config=CHECKED)
class DeliveredUnit:
    """Unit k stands in ``slot``; without a slot (-1) it was skipped, for the reason in ``tally.bad``."""

    k: Count
    epoch: Count
    block: Count
    block_first_unit: Count
    slot: Annotated[int, Field(strict=True, ge=-1)]
    lease: Count
    layout: Layout
    tally: Tally
    block_quarantined: BlockQuarantined
    """Files of the block that gave no units (with the block's first unit)."""
    bad_files: FileNumbers = ()
    """Files that gave no units, of all blocks that begin behind the lane's former unit: this unit's k depends on them,
    whichever lane counts them."""
    source: Source = Source()
    content: Digest = ""
    """As in Done; empty for a unit that was skipped."""


@dataclass(frozen=True, config=CHECKED)
class CommitRequest:
    """The disk budget is used up by data behind the trainer: write a checkpoint, so that it can be evicted."""


@dataclass(frozen=True, config=CHECKED)
class End:
    """The plan has no more units for this lane."""

    lane: Count


@dataclass(frozen=True, config=CHECKED)
class Refuse:
    """The peer can't take part, and why."""

    reason: Reason
    other_inventory: Annotated[bool, Field(strict=True)] = False
    """Its checkpoint was trained on other files: it may begin this plan anew."""
