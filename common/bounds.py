"""Bounds of memory that follow from the size of a slot.

A slot bounds its own content. Outliers are stored outside of it and bounded by a multiple: in the plan an outlier
counts as its particles / `outlier_share`, or as the largest event that is no outlier, whichever is more. So a unit's
outliers have at most `outlier_share` slots of particles, and that is also the largest event that is read at all.
"""

from __future__ import annotations

from math import ceil

from common.config import MIB, StreamConfig

MOST_BATCH_ROWS = 32_768
"""Default maximum of rows in a reader's record batch."""
_LEAST_SHARE = 8
_LEAST_OUTLIER_BYTES = 32 * MIB
"""Minimum for slots below 4 MiB: an event of 178,000 particles takes 2 MiB, whatever the slot."""
_BASE_BYTES = 512 * MIB
_COPIES = 8
"""Maximum bytes in memory for one byte of numbers: levels, offsets, values that grow by doubling, the outliers as
stored in the file, and their Parquet file."""


def outlier_share(stream: StreamConfig) -> int:
    """Divisor of an outlier's particles in the plan."""
    return max(_LEAST_SHARE, ceil(_LEAST_OUTLIER_BYTES / stream.slot_bytes))


def working_bytes(stream: StreamConfig) -> int:
    """Maximum bytes of memory to inspect a file or decode a unit: several times the need of good files."""
    return _BASE_BYTES + _COPIES * outlier_share(stream) * stream.slot_bytes
