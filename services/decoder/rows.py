"""Ragged rows as a reader gives them, before any filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.ragged import Array


class BadRowsError(Exception):
    """Rows that can't be used: the text names file, row group, column and row, and what was expected."""


@dataclass(frozen=True)
class RaggedRows:
    """Some rows of one file. R rows, P particles."""

    counts: npt.NDArray[np.int64]
    """(R,) particles of every row."""
    event_columns: dict[str, Array]
    """Name -> (R, fields)."""
    particle_columns: dict[str, Array]
    """Name -> (P, fields)."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles."""
