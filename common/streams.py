"""Random streams of the plan: one independent Philox generator for each purpose and key."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Purpose of random numbers; equal keys of different streams are independent."""

    FILES = 1
    """Order of the files in an epoch: key (seed, epoch), from the second range on (seed, epoch, range)."""
    ROW_GROUPS = 2
    """Order of the row groups in a block: key (seed, block of the run)."""
    EVENTS = 3
    """Order of the events in a unit: key (seed, epoch, k), with several shards (seed, epoch, k, shard)."""
    BUCKETS = 4
    """Order of the batches in a unit with `stream.length_buckets`: keys as of EVENTS."""


def generator(stream: Stream, seed: int, *key: int) -> np.random.Generator:
    """Random generator that depends only on its arguments (non-negative; the key's below 2**32)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(int(stream), *key))))
