"""Conversion of a Parquet file's record batches to ragged rows, in any layout of the workload's columns.

R rows, P particles.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.files.checks import checked, drop_particles
from common.files.gather import offsets_of
from common.files.parquet.columns import inside
from common.files.parquet.lists import (
    BadList,
    BadNumber,
    converted,
    flattened,
    list_lengths,
    null_mask,
    stored_matrix,
)
from common.files.relative import counted_from_first
from common.files.room import Room
from common.files.rows import BadRowsError, RaggedRows
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_NULLS_HINT = 'source.nulls = "empty" would count it as empty'


def to_rows(
    batch: pa.RecordBatch, workload: EventSchema, where: str, first_row: int, large_above: int, room: Room
) -> RaggedRows:
    """Checked rows of a record batch. Raises BadRowsError that names column, row and the expected value.

    Columns of particles that several columns of the file fill are in ``room``, the others in Arrow's buffers.
    """
    columns = _Columns(batch, workload, where, first_row, room)
    for source in workload.source_columns:
        if workload.per(source) == "event":
            columns.add_event_column(source)
        else:
            columns.add_particle_column(source)
    assert columns.counts is not None, "a workload has a column of particles"
    large = np.flatnonzero(columns.counts > large_above)
    arrays = columns.arrays
    rows = RaggedRows(
        counts=columns.counts,
        event_columns={one.name: arrays[one.name] for one in workload.read_columns if one.per == "event"},
        particle_columns={one.name: arrays[one.name] for one in workload.read_columns if one.per == "particle"},
        large=large,
        large_events=_copied(batch, large) if len(large) else None,
        is_null=columns.is_null,
    )
    return checked(rows if columns.keep is None else drop_particles(rows, columns.keep), workload, where, first_row)


class _Columns:
    """Columns of the workload added so far from one batch."""

    def __init__(self, batch: pa.RecordBatch, workload: EventSchema, where: str, first_row: int, room: Room) -> None:
        self.arrays: dict[str, Array] = {}
        """Array by column name: (R, fields) or (P, fields)."""
        self.counts: Int64 | None = None
        """Particles of each row. (R,)."""
        self.is_null: Bool | None = None
        """True for rows that hold no event; None: all do. (R,)."""
        self.keep: Bool | None = None
        """True for particles that are not null; None: all. (P,)."""
        self._batch = batch
        self._workload = workload
        self._where = where
        self._first_row = first_row
        self._room = room

    def add_event_column(self, source: SourceColumn) -> None:
        """Add a column of numbers, or of lists of numbers. Raises BadRowsError."""
        values, _ = inside(self._batch.column(source.path[0]), source.path[1:])
        null = self._null_rows(values, source)
        if null is not None:
            self.is_null = null if self.is_null is None else self.is_null | null
        self._fill(values, null, source, None)

    def add_particle_column(self, source: SourceColumn) -> None:
        """Add a column of lists of numbers, or of lists of lists. Raises BadRowsError."""
        lists, names = inside(self._batch.column(source.path[0]), source.path[1:])
        self._null_rows(lists, source)  # a null list has no particles
        counts = self._checked_counts(list_lengths(lists), source)
        values, _ = inside(flattened(lists), names)
        null = null_mask(values)
        if null is not None:
            if self._workload.source.nulls == "error":
                row = _row_of(int(np.argmax(null)), counts)
                raise self._error(source, row, f"a particle is null; {_NULLS_HINT}")
            self.keep = ~null if self.keep is None else self.keep & ~null
        self._fill(values, null, source, counts)

    def _null_rows(self, values: pa.Array, source: SourceColumn) -> Bool | None:
        null = null_mask(values)
        if null is not None and self._workload.source.nulls == "error":
            raise self._error(source, int(np.argmax(null)), f"the value is null; {_NULLS_HINT}")
        return null

    def _checked_counts(self, counts: Int64, source: SourceColumn) -> Int64:
        """Counts, checked: particle columns of one event must have the same length."""
        if self.counts is None:
            self.counts = counts
        elif not np.array_equal(self.counts, counts):
            row = int(np.argmax(self.counts != counts))
            raise self._error(source, row, f"{counts[row]} particles; another column has {self.counts[row]}")
        return counts

    def _fill(self, values: pa.Array, null: Bool | None, source: SourceColumn, counts: Int64 | None) -> None:
        """Fill ``source``'s fields of its column; zeros where the value is null."""
        column = self._workload.column(source.into)
        try:
            if null is None:
                numbers = self._numbers(values, source, counts)
            else:
                numbers = self._numbers(values.drop_null(), source, None if counts is None else _kept(counts, ~null))
        except BadList as error:
            index = error.index if null is None else int(np.flatnonzero(~null)[error.index])
            row = index if counts is None else _row_of(index, counts)
            raise self._error(source, row, self._problem(error, source)) from None
        if null is not None:
            filled = np.zeros((len(null), numbers.shape[1]), column.dtype)
            filled[~null] = numbers
            numbers = filled
        if numbers.shape[1] == len(column.fields):
            self.arrays[column.name] = numbers
            return
        if column.name not in self.arrays:
            self.arrays[column.name] = (
                self._room.empty(column, len(numbers))
                if column.per == "particle"
                else np.empty((len(numbers), len(column.fields)), column.dtype)
            )
        self.arrays[column.name][:, source.field] = numbers[:, 0]

    def _numbers(self, values: pa.Array, source: SourceColumn, counts: Int64 | None) -> Array:
        """Numbers of N values, none of them null: (N, fields that ``source`` fills). Raises BadList.

        ``counts``: values of each event; None: one.
        """
        column = self._workload.column(source.into)
        if not source.is_list:
            numbers = values.to_numpy(zero_copy_only=False).reshape(-1, 1)
        else:
            stored = self._workload.stored_fields(source)
            columns = slice(None) if stored == column.fields else [stored.index(field) for field in column.fields]
            numbers = stored_matrix(values, len(stored), columns)
        if counts is not None and self._workload.relative:
            numbers = self._relative(numbers, source, counts)
        return np.ascontiguousarray(converted(numbers, column.dtype))

    def _relative(self, numbers: Array, source: SourceColumn, counts: Int64) -> Array:
        """Numbers with those of relative fields counted from the event's first. Raises BadNumber."""
        column = self._workload.column(source.into)
        for place, field in enumerate(range(len(column.fields)) if source.field is None else (source.field,)):
            rule = self._workload.relative_field(column.name, field)
            if rule is None:
                continue
            stored = numbers[:, place]
            try:
                small = counted_from_first(stored, counts, rule, column.dtype)
            except BadNumber as error:
                raise BadNumber(error.index, str(error), place) from None
            if numbers.shape[1] == 1:
                return small.reshape(-1, 1)
            if small is not stored:
                numbers = numbers.copy()  # Arrow's own buffer
                numbers[:, place] = small
        return numbers

    def _problem(self, error: BadList, source: SourceColumn) -> str:
        if isinstance(error, BadNumber):
            fields = self._workload.column(source.into).fields
            return f"{fields[error.column if source.field is None else source.field]} {error}"
        stored = self._workload.stored_fields(source)
        return f"{error} ({', '.join(stored)}; source.fields.{source.key} names others)"

    def _error(self, source: SourceColumn, row: int, problem: str) -> BadRowsError:
        return BadRowsError(f"{self._where}, column {source.name!r}, row {self._first_row + row}: {problem}")


def _kept(counts: Int64, keep: Bool) -> Int64:
    """Counts of the particles in ``keep`` (P,). (R,)."""
    return np.diff(offsets_of(keep)[offsets_of(counts)])


def _copied(batch: pa.RecordBatch, rows: Int64) -> pa.Table:
    """Copy of a few rows: joining slices takes a fifth of Arrow's `take`."""
    return pa.Table.from_batches([pa.concat_batches([batch.slice(row, 1) for row in rows.tolist()])])


def _row_of(index: int, counts: Int64) -> int:
    """Row of a particle."""
    return int(np.searchsorted(np.cumsum(counts), index, side="right"))
