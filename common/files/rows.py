"""Ragged rows as a reader gives them, before any filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.ragged import Array


class BadRowsError(Exception):
    """Rows that can't be used: the text names file, row group, column and row, and what was expected."""


@dataclass(frozen=True)
class RaggedRows:
    """Rows of files, checked. R rows, P particles. The arrays may be views of the reader's buffers."""

    counts: npt.NDArray[np.int64]
    """(R,) particles of every row."""
    event_columns: dict[str, Array]
    """Name -> (R, fields)."""
    particle_columns: dict[str, Array]
    """Name -> (P, fields)."""
    large: npt.NDArray[np.int64]
    """(L,) rows with more particles than the reader was told to look for, in order."""
    large_events: pa.Table
    """(L) the same rows as they stand in the file: the workload's source columns. The rest of the file's buffers that
    the arrays don't need can so be let go."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles, and null particles."""
    is_null: npt.NDArray[np.bool_] | None = None
    """(R,) rows that hold no event at all (`source.nulls = "empty"`); None: there is none. Their columns are zeros."""
