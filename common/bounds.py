"""Bounds of memory that follow from the size of a slot.

A slot bounds what goes into it. What does not go into it, outliers, is bounded by a multiple: in the plan an outlier
counts as an `outlier_share` of its particles, or as the largest event that is none, whichever is more. So a unit's
outliers have at most `outlier_share` slots of particles, and that is also the largest event that is read at all.
"""

from __future__ import annotations

from math import ceil

from common.config import MIB, StreamConfig

MOST_BATCH_ROWS = 32_768
"""Most rows of a record batch that a reader takes by itself."""
_LEAST_SHARE = 8
_LEAST_OUTLIER_BYTES = 32 * MIB
"""Slots smaller than 4 MiB: an event of 178,000 particles takes 2 MiB, whatever the slot."""
_BASE_BYTES = 512 * MIB
_COPIES = 8
"""Bytes in memory for one byte of numbers, at most: levels, offsets, values that grow by doubling, the outliers as they
stand in the file, and their Parquet file."""


def outlier_share(stream: StreamConfig) -> int:
    """An outlier counts as its particles / this number in the plan."""
    return max(_LEAST_SHARE, ceil(_LEAST_OUTLIER_BYTES / stream.slot_bytes))


def working_bytes(stream: StreamConfig) -> int:
    """Most memory to inspect a file, or to decode a unit: several times what good files need."""
    return _BASE_BYTES + _COPIES * outlier_share(stream) * stream.slot_bytes
