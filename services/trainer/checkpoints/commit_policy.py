"""Commit policy: when to save a checkpoint, and when to report its position to the fetcher. Pure: data in, acts out.

A commit: request or step → decide() → snapshot → file on disk → position reported → files behind it evicted.
Three rules hold for any order of steps, requests, failures and stops:

- Only a position on disk is reported.
- One checkpoint at a time is being written; the next one waits for it.
- A request is answered by a checkpoint begun after it: one that was being written already is not reported in its place.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from services.trainer.stream.position import StreamPosition


class Mark(NamedTuple):
    """Place between two steps."""

    step: int
    position: StreamPosition


class Write(Enum):
    """State of the checkpoint that is being written in the background."""

    NONE = auto()
    RUNNING = auto()
    ENDED = auto()
    """Checkpoint on disk, or a failure that ends the process."""
    REFUSED = auto()
    """Weights not finite: all ranks have to learn of it between the same two steps."""


class Act(Enum):
    """Action of the owner of the commits, in the order of the decision."""

    ASK = auto()
    """Have all ranks save between the same two steps."""
    SETTLE = auto()
    """Wait for the write; its errors are raised."""
    SAVE = auto()
    """Take a snapshot and begin to write it."""
    REPORT = auto()
    """Report the newest position on disk."""


class Moment(NamedTuple):
    """Inputs of a decision."""

    now: Mark
    """Place up to which training has come."""
    on_disk: Mark | None = None
    """Newest checkpoint of this process."""
    writing: Mark | None = None
    write: Write = Write.NONE
    stepped: bool = False
    """True if a step was made since the last decision; else the feed waits for data."""
    asked: bool = False
    """True if the fetcher needs a checkpoint, and all ranks have agreed on this moment."""
    ending: bool = False
    """True if no more steps follow: the plan ended, the last step was made, or the process was asked to stop."""


def decide(moment: Moment, every: int) -> tuple[Act, ...]:
    """Acts of this moment; ``every``: steps between checkpoints."""
    is_due = moment.asked or moment.ending or (moment.stepped and moment.now.step % every == 0)
    if not is_due:
        match moment.write:
            case Write.ENDED:
                return (Act.SETTLE, Act.REPORT)
            case Write.REFUSED if not moment.stepped:
                return (Act.ASK,)  # without data no step would come whose commit raises it
            case _:
                return ()
    acts = (Act.SETTLE,) if moment.writing is not None else ()
    newest = moment.on_disk if moment.writing is None else moment.writing
    if newest == moment.now:
        return (*acts, Act.REPORT)
    if acts and not moment.asked:
        acts = (*acts, Act.REPORT)  # else steps that are quicker than the disk would leave all but the last unreported
    acts = (*acts, Act.SAVE)
    return (*acts, Act.SETTLE, Act.REPORT) if moment.ending else acts
