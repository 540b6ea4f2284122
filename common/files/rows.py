"""Ragged rows as returned by a reader, before any filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.files.gather import as_items
from common.unit_arrays import Array

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class BadRowsError(Exception):
    """Error for rows that can't be used: the text names file, row group, column, row and expected value."""


@dataclass(frozen=True)
class BrokenRule:
    """Events that are invalid because of one rule. An event that breaks several is counted by the first."""

    column: str
    """Column of the file, or of the workload where values are checked."""
    expected: str
    rows: Int64
    """(I,) at least one, in order."""
    found: str
    """Value that the first of the rows has instead."""
    field: str = ""
    """Number of a list; empty: the whole value."""

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"column {self.column!r}{f', {self.field}' if self.field else ''}: expected {self.expected}"

    def at(self, places: Int64) -> BrokenRule:
        """Same events, row r being row ``places[r]`` of others."""
        return replace(self, rows=places[self.rows])


@dataclass(frozen=True)
class RaggedRows:
    """Rows of files, checked. R rows, P particles. The arrays may be views of the reader's buffers."""

    counts: Int64
    """Particles of each row. (R,)."""
    event_columns: dict[str, Array]
    """Array by column name: (R, fields)."""
    particle_columns: dict[str, Array]
    """Array by column name: (P, fields)."""
    large: Int64
    """Rows with more than ``large_above`` particles (see Reader), in order. (L,)."""
    large_events: pa.Table | None
    """Same L rows as stored in the file: the workload's source columns. Buffers of the file that the arrays don't need
    can so be freed. None if there are no such rows."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles, and null particles."""
    is_null: Bool | None = None
    """True for rows that hold no event (`source.nulls = "empty"`), and for invalid ones; None: none. Their columns are
    zeros. (R,)."""
    invalid: tuple[BrokenRule, ...] = ()
    """Rows that are set aside because of their values; they have no particles here."""
    invalid_events: pa.Table | None = None
    """All invalid rows in order, as stored in the file. None: there are none."""

    @property
    def invalid_rows(self) -> Int64:
        """All invalid rows, in order."""
        if not self.invalid:
            return np.zeros(0, np.int64)
        return np.sort(np.concatenate([one.rows for one in self.invalid]))


def first_invalid(rows: RaggedRows, name: str, first_row: int) -> str:
    """First invalid event in words, given the name of the file and the row in it of the first of the rows."""
    one = min(rows.invalid, key=lambda one: int(one.rows[0]))
    row = first_row + int(one.rows[0])
    return f"{name}: column {one.column!r}, row {row} of the file: {one.found}; expected {one.expected}"


def without_events(rows: RaggedRows, broken: Sequence[BrokenRule]) -> RaggedRows:
    """Rows in which the events of ``broken``, none of them invalid so far, are invalid: empty, their columns zeros."""
    if not broken:
        return rows
    aside = np.zeros(len(rows.counts), np.bool_)
    for one in broken:
        aside[one.rows] = True
    keep = ~np.repeat(aside, rows.counts)
    event_columns = {name: column.copy() for name, column in rows.event_columns.items()}
    for column in event_columns.values():
        column[aside] = 0
    return replace(
        rows,
        counts=np.where(aside, 0, rows.counts),
        event_columns=event_columns,
        particle_columns={name: kept(column, keep) for name, column in rows.particle_columns.items()},
        is_null=aside if rows.is_null is None else rows.is_null | aside,
        invalid=(*rows.invalid, *broken),
    )


def kept(array: Array, keep: Bool) -> Array:
    """Rows of a contiguous array: as one item each, numpy moves runs of them at once. (P, F) -> (K, F)."""
    return as_items(array)[keep].view(array.dtype).reshape(-1, array.shape[1])
