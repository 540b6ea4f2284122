"""Conversion of a Parquet file's record batches to ragged rows, in any layout of the workload's columns.

R rows, P particles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.files.checks import checked, drop_particles, rows_of_particles
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
from common.files.rows import BrokenRule, RaggedRows
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

_NO_NULL = 'none (source.nulls = "empty" would count it as empty)'
_FEW_ROWS = 64


class _BadEvents(Exception):
    """Error for events that don't fit the columns."""

    def __init__(self, broken: BrokenRule) -> None:
        self.broken = broken


def to_rows(batch: pa.RecordBatch, workload: EventSchema, large_above: int, room: Room) -> RaggedRows:
    """Checked rows of a record batch.

    Columns of particles that several columns of the file fill are in ``room``, the others in Arrow's buffers.
    """
    mark, places, broken = room.mark(), np.arange(batch.num_rows), list[BrokenRule]()
    while True:  # once for a good batch, and once more for each rule of the columns that an event breaks
        try:
            rows = _converted(batch if not broken else batch.take(pa.array(places)), workload, large_above, room)
        except _BadEvents as error:
            broken.append(error.broken.at(places))
            places = np.delete(places, error.broken.rows)
            room.free_from(mark)
        else:
            break
    rows = _at_their_places(rows, places, batch.num_rows, broken) if broken else rows
    if not rows.invalid:
        return rows
    return replace(rows, invalid_events=_with_whole_ids(_copied(batch, rows.invalid_rows), workload))


def _converted(batch: pa.RecordBatch, workload: EventSchema, large_above: int, room: Room) -> RaggedRows:
    """Checked rows of a record batch. Raises _BadEvents."""
    columns = _Columns(batch, workload, room)
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
    return checked(rows if columns.keep is None else drop_particles(rows, columns.keep), workload)


def _at_their_places(rows: RaggedRows, places: Int64, num_rows: int, broken: Sequence[BrokenRule]) -> RaggedRows:
    """Rows at ``places`` among ``num_rows``, of which the others are those of ``broken``."""

    def spread(column: npt.NDArray[Number], filling: int = 0) -> npt.NDArray[Number]:
        out = np.full((num_rows, *column.shape[1:]), filling, column.dtype)
        out[places] = column
        return out

    return replace(
        rows,
        counts=spread(rows.counts),
        event_columns={name: spread(column) for name, column in rows.event_columns.items()},
        large=places[rows.large],
        is_null=spread(np.zeros(len(places), np.bool_) if rows.is_null is None else rows.is_null, True),
        invalid=(*broken, *(one.at(places) for one in rows.invalid)),
    )


class _Columns:
    """Columns of the workload added so far from one batch."""

    def __init__(self, batch: pa.RecordBatch, workload: EventSchema, room: Room) -> None:
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
        self._room = room

    def add_event_column(self, source: SourceColumn) -> None:
        """Add a column of numbers, or of lists of numbers. Raises _BadEvents."""
        values, _ = inside(self._batch.column(source.path[0]), source.path[1:])
        null = self._null_rows(values, source)
        if null is not None:
            self.is_null = null if self.is_null is None else self.is_null | null
        self._fill(values, null, source, None)

    def add_particle_column(self, source: SourceColumn) -> None:
        """Add a column of lists of numbers, or of lists of lists. Raises _BadEvents."""
        lists, names = inside(self._batch.column(source.path[0]), source.path[1:])
        self._null_rows(lists, source)  # a null list has no particles
        counts = self._checked_counts(list_lengths(lists), source)
        values, _ = inside(flattened(lists), names)
        null = null_mask(values)
        if null is not None:
            if self._workload.source.nulls == "error":
                raise self._error(source, _rows_of(null, counts), "a particle is null", _NO_NULL)
            self.keep = ~null if self.keep is None else self.keep & ~null
        self._fill(values, null, source, counts)

    def _null_rows(self, values: pa.Array, source: SourceColumn) -> Bool | None:
        null = null_mask(values)
        if null is not None and self._workload.source.nulls == "error":
            raise self._error(source, np.flatnonzero(null), "the value is null", _NO_NULL)
        return null

    def _checked_counts(self, counts: Int64, source: SourceColumn) -> Int64:
        """Counts, checked: particle columns of one event must have the same length."""
        if self.counts is None:
            self.counts = counts
        elif not np.array_equal(self.counts, counts):
            rows = np.flatnonzero(self.counts != counts)
            found = f"{counts[rows[0]]} particles; another column has {self.counts[rows[0]]}"
            raise self._error(source, rows, found, "the same number in all")
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
            bad = error.bad
            if null is not None:
                bad = np.zeros(len(null), np.bool_)
                bad[~null] = error.bad
            rows = np.flatnonzero(bad) if counts is None else _rows_of(bad, counts)
            raise self._error(source, rows, *self._problem(error, source)) from None
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
                raise error.at_field(place, numbers.shape[1]) from None
            if numbers.shape[1] == 1:
                return small.reshape(-1, 1)
            if small is not stored:
                numbers = numbers.copy()  # Arrow's own buffer
                numbers[:, place] = small
        return numbers

    def _problem(self, error: BadList, source: SourceColumn) -> tuple[str, str]:
        """Number found, and number expected."""
        if isinstance(error, BadNumber):
            fields = self._workload.column(source.into).fields
            return f"{fields[error.column if source.field is None else source.field]} {error.found}", error.expected
        stored = self._workload.stored_fields(source)
        return error.found, f"{error.expected} ({', '.join(stored)}; source.fields.{source.key} names others)"

    def _error(self, source: SourceColumn, rows: Int64, found: str, expected: str) -> _BadEvents:
        assert len(rows), found  # without them to_rows() would try for ever
        return _BadEvents(BrokenRule(source.name, expected, rows, found))


def _kept(counts: Int64, keep: Bool) -> Int64:
    """Counts of the particles in ``keep`` (P,). (R,)."""
    return np.diff(offsets_of(keep)[offsets_of(counts)])


def _copied(batch: pa.RecordBatch, rows: Int64) -> pa.Table:
    """Copy of a few rows: joining slices takes a fifth of Arrow's `take`."""
    if len(rows) > _FEW_ROWS:
        return pa.Table.from_batches([batch.take(pa.array(rows))])
    return pa.Table.from_batches([pa.concat_batches([batch.slice(row, 1) for row in rows.tolist()])])


def _with_whole_ids(events: pa.Table, workload: EventSchema) -> pa.Table:
    """Events with integers as ids, 0 for what is none: MissingIds may have held floats."""
    for source in workload.source_columns:
        kind = pa.from_numpy_dtype(workload.column(source.into).dtype)
        if source.path[1:] or not pa.types.is_integer(kind) or not pa.types.is_floating(events[source.name].type):
            continue
        stored = events[source.name].to_numpy()
        with np.errstate(invalid="ignore"):
            ids = stored.astype(workload.column(source.into).dtype)
        ids[ids.astype(stored.dtype) != stored] = 0
        events = events.set_column(events.column_names.index(source.name), source.name, pa.array(ids))
    return events


def _rows_of(bad: Bool, counts: Int64) -> Int64:
    """Rows with a bad particle, in order. ``bad`` (P,)."""
    return np.unique(rows_of_particles(np.flatnonzero(bad), counts))
