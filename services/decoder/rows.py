"""Ragged rows as a reader gives them, before any filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.ragged import Array


class BadRowsError(Exception):
    """Rows that can't be used: the text names file, row group, column and row, and what was expected."""


@dataclass(frozen=True)
class RaggedRows:
    """Consecutive rows of one file, checked. R rows, P particles. The arrays may be views of the reader's buffers."""

    counts: npt.NDArray[np.int64]
    """(R,) particles of every row."""
    event_columns: dict[str, Array]
    """Name -> (R, fields)."""
    particle_columns: dict[str, Array]
    """Name -> (P, fields)."""
    source_table: Callable[[npt.NDArray[np.int64]], pa.Table]
    """Some of the rows, by index, as they stand in the file: a table with the workload's source columns."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles, and null particles."""
    is_null: npt.NDArray[np.bool_] | None = None
    """(R,) rows that hold no event at all (`source.nulls = "empty"`); None: there is none. Their columns are zeros."""
