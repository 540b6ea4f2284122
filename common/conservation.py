"""Conservation of events: what was planned is what was read, and each event read has one fate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.planned import PlannedShard
from common.status import Counters


@dataclass(frozen=True)
class ShardEvents:
    """Both sides of one shard's sum."""

    shard: int
    planned: PlannedShard
    """Record of its fetcher."""
    counters: Counters
    """Counters of the trainers."""


def imbalance(shards: Sequence[ShardEvents], *, files: int | None, is_complete: bool) -> str:
    """First of the sums that is wrong, with the shard and the difference; empty if all are right.

    ``files``: number in the inventory, over all epochs (None: unknown, or without end). ``is_complete``: the plan was
    read to its end; else a shard may have read less than was planned.
    """
    for one in shards:
        missing = one.planned.events - one.counters.events_read
        if missing < 0 or (missing and is_complete):
            how = f"{missing:,} missing" if missing > 0 else f"{-missing:,} too many"
            return (
                f"shard {one.shard}: {one.planned.events:,} planned, but {one.counters.events_read:,} read by the"
                f" trainers ({how})"
            )
        if not one.counters.adds_up():
            return f"shard {one.shard}: {unequal_fates(one.counters)}"
    planned = sum(one.planned.files for one in shards)
    if is_complete and files is not None and planned != files:
        of_each = ", ".join(f"shard {one.shard} {one.planned.files:,}" for one in shards)
        return f"{files:,} files in all epochs, but {planned:,} planned ({of_each})"
    return ""


def unequal_fates(counters: Counters) -> str:
    """Sum of the fates of events, which is not the number read, in words."""
    return (
        f"{counters.events_read} read, but {counters.events_trained} trained"
        f" + {counters.events_outlier} outlier + {counters.events_empty} empty"
        f" + {counters.events_quarantined} quarantined + {counters.events_held_out} held out"
        f" + {counters.events_invalid} invalid"
    )
