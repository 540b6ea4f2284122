"""Ragged rows as returned by a reader, before any filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.unit_arrays import Array


class BadRowsError(Exception):
    """Error for rows that can't be used: the text names file, row group, column, row and expected value."""


@dataclass(frozen=True)
class RaggedRows:
    """Rows of files, checked. R rows, P particles. The arrays may be views of the reader's buffers."""

    counts: npt.NDArray[np.int64]
    """Particles of each row. (R,)."""
    event_columns: dict[str, Array]
    """Array by column name: (R, fields)."""
    particle_columns: dict[str, Array]
    """Array by column name: (P, fields)."""
    large: npt.NDArray[np.int64]
    """Rows with more than ``large_above`` particles (see Reader), in order. (L,)."""
    large_events: pa.Table | None
    """Same L rows as stored in the file: the workload's source columns. Buffers of the file that the arrays don't need
    can so be freed. None if there are no such rows."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles, and null particles."""
    is_null: npt.NDArray[np.bool_] | None = None
    """True for rows that hold no event (`source.nulls = "empty"`); None: none. Their columns are zeros. (R,)."""
