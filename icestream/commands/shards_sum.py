"""Sum over the shards of a run at its end: the fetchers' records beside the trainers' counters."""

from __future__ import annotations

import math
from pathlib import Path

from common.config import StreamConfig
from common.conservation import ShardEvents, imbalance
from common.planned import PlannedShard, planned_name, planned_shard
from common.published import num_files
from common.status import TrainerStatus
from services.config.root import Config
from services.fetcher.inventory.published import list_path
from services.fetcher.inventory.ranges import make_ranges


def imbalance_of_shards(shared_dir: Path, config: Config, status: TrainerStatus | None) -> str:
    """Sum that is wrong, in words; empty if all are right, and for a run without shards.

    ``shared_dir``: folder of the inventory, which the fetchers of all shards share; ``status``: of the first trainer.
    """
    if status is None or not status.shards:
        return ""
    by_steps = 0 < status.max_steps <= status.step
    by_fewer_epochs = 0 < config.epochs <= status.epoch  # it had come further when its epochs were lowered
    is_complete = status.state == "finished" and not (by_steps or by_fewer_epochs)
    # There may be lists of other inputs, too, which the run has refused.
    ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
    files = [num_files(list_path(shared_dir, one)) for one in ranges]
    blocks = config.epochs * sum(math.ceil(number / config.stream.block_files) for number in files)
    shards = [
        ShardEvents(shard, _planned(shared_dir, shard, config.stream, blocks if is_complete else 0), counters)
        for shard, counters in enumerate(status.shards)
    ]
    return imbalance(shards, files=sum(files) * config.epochs if config.epochs else None, is_complete=is_complete)


def _planned(shared_dir: Path, shard: int, stream: StreamConfig, blocks: int) -> PlannedShard:
    """Sum of a shard's record. ``blocks``: number in all epochs of the run; 0: unknown, or without end."""
    path = shared_dir / planned_name(shard)
    if not path.exists():
        return PlannedShard()
    with path.open() as lines:
        return planned_shard(lines, len(range(shard, blocks, stream.shards)) if blocks else None)
