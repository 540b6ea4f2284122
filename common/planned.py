"""Record of what a shard has planned: files and events of each of its blocks. Pure.

The sum over all shards is compared with what was trained and set aside (conservation.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

_EPOCHS = "epochs"


@dataclass(frozen=True)
class PlannedBlock:
    """Block of a shard, by its number in the shard."""

    block: int
    files: int
    events: int
    """Events of its files, those of quarantined ones included as far as they are known."""


@dataclass(frozen=True)
class PlannedShard:
    """Sum of a shard's blocks."""

    blocks: int = 0
    files: int = 0
    events: int = 0


def planned_name(shard: int) -> str:
    """File name of a shard's record."""
    return f"planned-{shard:03d}.jsonl"


def planned_line(block: PlannedBlock) -> str:
    """Line of the record."""
    return json.dumps([block.block, block.files, block.events])


def epochs_line(epochs: int) -> str:
    """Line for the number of epochs of the blocks that follow."""
    return json.dumps({_EPOCHS: epochs})


def planned_shard(lines: Iterable[str], end: int | None = None) -> PlannedShard:
    """Sum over the blocks in a record. A block that was planned again counts once, as planned last; what a killed
    process left of a line is skipped.

    ``end``: number of blocks. Those behind it do not count if they were planned while the run had more epochs.
    """
    blocks: dict[int, tuple[PlannedBlock, int | None]] = {}
    epochs: int | None = None
    for line in lines:
        try:
            content = json.loads(line)
            if isinstance(content, dict):
                epochs = content[_EPOCHS]
                continue
            block = PlannedBlock(*content)
        except (ValueError, TypeError):
            continue
        blocks[block.block] = block, epochs
    counted = [block for block, of in blocks.values() if end is None or block.block < end or of is None or of == epochs]
    return PlannedShard(len(counted), sum(block.files for block in counted), sum(block.events for block in counted))
