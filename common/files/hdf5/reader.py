"""Reader of HDF5 files of flat tables: contiguous slices straight into numpy's memory, as ragged rows.

R rows, P particles.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.files.checks import checked, drop_particles, rows_of_particles
from common.files.gather import offsets_of
from common.files.hdf5.span import SpanLayout, read_span
from common.files.hdf5.tables import BadTables, Tables, open_tables, read_counts
from common.files.native import FILES
from common.files.parquet.lists import BadNumber
from common.files.reader import Beat
from common.files.relative import counted_from_first
from common.files.rows import BadRowsError, BrokenRule, RaggedRows, without_events
from common.input_errors import MachineError
from common.messages import Part
from common.schema import EventSchema, FlatTables, SourceColumn
from common.unit_arrays import Array

_OPEN_FILES = 16
_SLICE_PARTICLES = 131_072
"""Particles read at a time, rounded to whole events. A call into HDF5 costs as much as thousands of particles; a slice
much larger than the CPU's cache has left it before it is processed."""

Int64 = npt.NDArray[np.int64]

_NONE: Int64 = np.zeros(0, np.int64)


class Hdf5Reader:
    """Reader of HDF5 files (see Reader). A row group is a span of rows chosen by the fetcher: HDF5 has none."""

    def __init__(self, workload: EventSchema) -> None:
        assert workload.tables is not None
        self._workload = workload
        self._layout = workload.tables
        self._files: OrderedDict[str, Tables] = OrderedDict()
        self._span_layout = SpanLayout.of(workload, workload.tables)
        self._scratch = np.empty(0, np.uint8)

    def read(self, parts: Sequence[Part], beat: Beat = lambda: None, *, large_above: int = 1 << 62) -> list[RaggedRows]:
        """The rows of the parts: see Reader."""
        pieces: list[RaggedRows] = []
        for part in parts:
            first = part.file_row + part.first_row
            where = f"{part.name}: rows {first} to {first + part.rows - 1}"
            if not part.path:
                raise BadRowsError(f"{where}: the file was there when the plan was made, and can't be staged any more")
            try:
                tables = self._open(part.path)
                for piece in self._pieces(tables, part, where, large_above):
                    pieces.append(piece)
                    beat()
                tables.check_size()
            except BadTables as error:
                self._close(part.path)
                raise BadRowsError(f"{where}: {error}") from None
            except MachineError:
                self._close(part.path)
                raise
        return pieces

    def close(self) -> None:
        """Close all files."""
        for path in list(self._files):
            self._close(path)

    def _pieces(self, tables: Tables, part: Part, where: str, large_above: int) -> Iterator[RaggedRows]:
        first = part.file_row + part.first_row
        if first + part.rows > tables.counts.rows:
            raise BadRowsError(f"{where}: the file has {tables.counts.rows} rows only")
        counts = read_counts(tables, part.file_row, part.first_row + part.rows)
        before = part.file_particle + int(counts[: part.first_row].sum())
        counts = counts[part.first_row :]
        num = int(counts.sum())
        if before + num > tables.particles.rows:
            raise BadRowsError(
                f"{where}: dataset {tables.counts.name!r} asks for {before + num} rows of "
                f"{tables.particles.name!r}, which has {tables.particles.rows}"
            )
        piece = self._span(tables, first, counts, before, num, large_above)
        if piece is not None:
            yield piece
            return
        offsets = offsets_of(counts)
        events = _Events.of(tables.events.read(first, part.rows), self._workload, self._layout, first)
        row = 0
        while row < part.rows:
            # The last row that still fits, but at least one.
            fitting = int(np.searchsorted(offsets, offsets[row] + _SLICE_PARTICLES, side="right")) - 1
            end = min(max(fitting, row + 1), part.rows)
            num = int(offsets[end] - offsets[row])
            raw = tables.particles.read(before + int(offsets[row]), num, self._buffer(tables, num))
            yield self._piece(raw, np.diff(offsets[row : end + 1]), events.rows(row, end), where, large_above)
            row = end

    def _span(
        self, tables: Tables, first: int, counts: Int64, particle: int, num: int, large_above: int
    ) -> RaggedRows | None:
        """Checked rows from ``first`` on, read in C++; None: numpy must read them, or report why they can't be read."""
        if FILES.used is None or self._span_layout is None:
            return None
        span = read_span(FILES.used, self._span_layout, tables, first, counts, particle, num)
        if span is None:
            return None
        large = np.flatnonzero(counts > large_above) if len(counts) and counts.max() > large_above else _NONE
        large_events = None
        if len(large):
            offsets = offsets_of(counts)
            of_rows = [tables.particles.read(particle + int(offsets[row]), int(counts[row])) for row in large]
            ids = span.event_columns[self._span_layout.identity.name][large]
            large_events = _table(
                of_rows,
                dict(zip(self._layout.ids, ids.T, strict=True)),
                np.concatenate([tables.events.read(first + int(row), 1) for row in large]),
                self._workload,
                self._layout,
            )
        return RaggedRows(
            counts=span.counts,
            event_columns=span.event_columns,
            particle_columns=span.particle_columns,
            large=large,
            large_events=large_events,
            particles_dropped=num - len(span.particle_columns[self._span_layout.particles.name]),
        )

    def _piece(self, raw: Array, counts: Int64, events: _Events, where: str, large_above: int) -> RaggedRows:
        """Checked rows of a slice. ``raw`` (P, ids and numbers) is the reader's buffer, reused for the next slice."""
        offsets = offsets_of(counts)
        layout, workload = self._layout, self._workload
        fillers = _check_ids(raw, counts, offsets, events, f"{where}, dataset {layout.particles!r}")
        source = workload.source_column(layout.particle_list)
        large = np.flatnonzero(counts > large_above) if len(counts) and counts.max() > large_above else _NONE

        def as_stored(chosen: Int64) -> pa.Table:
            of_rows = [raw[offsets[row] : offsets[row + 1]] for row in chosen]
            ids = {name: events.ids[name][chosen] for name in layout.ids}
            return _table(of_rows, ids, events.raw[chosen], workload, layout)

        particles, broken = self._particles(raw, counts, source, events.broken)
        rows = RaggedRows(
            counts=counts,
            event_columns=events.columns,
            particle_columns={source.into: particles},
            large=large,
            large_events=as_stored(large) if len(large) else None,
        )
        if len(fillers):
            keep = np.ones(len(raw), np.bool_)
            keep[fillers] = False
            rows = drop_particles(rows, keep)
        rows = checked(without_events(rows, broken), workload)
        return replace(rows, invalid_events=as_stored(rows.invalid_rows)) if rows.invalid else rows

    def _particles(
        self, raw: Array, counts: Int64, source: SourceColumn, broken: Sequence[BrokenRule]
    ) -> tuple[Array, Sequence[BrokenRule]]:
        """Numbers of the particles that the workload reads (P, fields), and ``broken`` with the rules that they break.

        Those of the events that break one are of no use.
        """
        while True:  # once for a good table, and once more for each rule that an event breaks
            try:
                usable = _without_numbers(raw, counts, broken) if broken else raw
                return _select(usable, len(self._layout.ids), source, self._workload, counts), broken
            except BadNumber as error:
                rows = np.unique(rows_of_particles(np.flatnonzero(error.bad), counts))
                field = self._workload.column(source.into).fields[error.column]
                found = f"{field} {error.found}"
                broken = (*broken, BrokenRule(self._layout.particles, error.expected, rows, found, field))

    def _buffer(self, tables: Tables, num: int) -> Array:
        table = tables.particles
        if len(self._scratch) < num * table.row_bytes:
            self._scratch = np.empty(num * table.row_bytes, np.uint8)
        return self._scratch[: num * table.row_bytes].view(table.dtype).reshape(num, table.shape[1])

    def _open(self, path: str) -> Tables:
        tables = self._files.pop(path, None)
        if tables is None:
            for evicted in [known for known in self._files if not Path(known).exists()]:
                self._close(evicted)  # an open file would keep its disk space
            tables = open_tables(Path(path), self._workload)
        self._files[path] = tables
        while len(self._files) > _OPEN_FILES:
            self._close(next(iter(self._files)))
        return tables

    def _close(self, path: str) -> None:
        tables = self._files.pop(path, None)
        if tables is not None:
            tables.close()


@dataclass(frozen=True)
class _Events:
    """Rows of the events' table."""

    raw: Array
    """Ids and numbers as stored. (R, ids and numbers)."""
    columns: dict[str, Array]
    """The workload's event columns."""
    ids: dict[str, Array]
    """File column -> (R,); 0 for an id that is no whole number."""
    broken: tuple[BrokenRule, ...]
    """Rows whose ids are no whole numbers."""
    first_row: int
    """Index of the first row in the file."""

    @classmethod
    def of(cls, raw: Array, workload: EventSchema, layout: FlatTables, first_row: int) -> _Events:
        """Stored rows of the events' table, split into columns and ids."""
        source = workload.source_column(layout.event_list)
        columns = {source.into: _select(raw, len(layout.ids), source, workload)}
        ids: dict[str, Array] = {}
        broken: list[BrokenRule] = []
        for place, name in enumerate(layout.ids):
            target = workload.column(workload.source_column(name).into)
            stored = raw[:, place].copy()
            with np.errstate(invalid="ignore"):  # a non-integer is changed by the cast, and so detected
                ids[name] = stored.astype(target.dtype)
            is_wrong = ids[name].astype(raw.dtype) != stored
            ids[name][is_wrong] = 0
            is_wrong[[row for one in broken for row in one.rows]] = False
            wrong = np.flatnonzero(is_wrong)
            if len(wrong):
                found = f"{name} is {stored[wrong[0]]}"
                broken.append(BrokenRule(layout.events, "a whole number", wrong, found, name))
            filled = columns.setdefault(target.name, np.empty((len(raw), len(target.fields)), target.dtype))
            filled[:, workload.source_column(name).field] = ids[name]
        return cls(raw, columns, ids, tuple(broken), first_row)

    def rows(self, first: int, end: int) -> _Events:
        """Rows ``first`` to ``end``."""
        here = [replace(one, rows=one.rows[(one.rows >= first) & (one.rows < end)] - first) for one in self.broken]
        return _Events(
            self.raw[first:end],
            {name: column[first:end] for name, column in self.columns.items()},
            {name: column[first:end] for name, column in self.ids.items()},
            tuple(one for one in here if len(one.rows)),
            self.first_row + first,
        )


def _select(
    raw: Array, num_ids: int, source: SourceColumn, workload: EventSchema, counts: Int64 | None = None
) -> Array:
    """Numbers that the workload reads from rows as stored. Always a copy. (N, fields).

    ``counts``: rows of each event, of a table of particles. Raises BadNumber.
    """
    column, stored = workload.column(source.into), workload.stored_fields(source)
    places = [num_ids + stored.index(field) for field in column.fields]
    out = np.empty((len(raw), len(places)), column.dtype)
    with np.errstate(over="ignore"):  # a number too large for the column becomes infinite, which the rules reject
        for i, place in enumerate(places):
            rule = None if counts is None else workload.relative_field(column.name, i)
            if rule is None or counts is None:
                out[:, i] = raw[:, place]
                continue
            try:
                out[:, i] = counted_from_first(raw[:, place], counts, rule, column.dtype)
            except BadNumber as error:
                raise error.at_field(i, len(places)) from None
    return out


def _without_numbers(raw: Array, counts: Int64, broken: Sequence[BrokenRule]) -> Array:
    """Copy with zeros in the particles of the events of ``broken``."""
    aside = np.zeros(len(counts), np.bool_)
    for one in broken:
        aside[one.rows] = True
    usable = raw.copy()
    usable[np.repeat(aside, counts)] = 0
    return usable


def _check_ids(raw: Array, counts: Int64, offsets: Int64, events: _Events, where: str) -> Int64:
    """Fillers: particles of zeros only, each the only one of its event. (F,).

    Every other particle must have its event's ids: raises BadRowsError that names the first that differs. Which event
    it belongs to is unknown then, and with it whether others are whole.
    """
    num_ids = len(events.ids)
    if num_ids * raw.itemsize == 8 and raw.dtype == events.raw.dtype:  # both ids as one item
        ids = [(_first_bytes(raw), _first_bytes(events.raw))]
    else:
        ids = [(raw[:, i].copy(), events.raw[:, i]) for i in range(num_ids)]
    has_any = slice(None) if counts.all() else np.flatnonzero(counts)
    firsts = offsets[:-1][has_any]
    of_firsts = [of_particles.take(firsts) for of_particles, _ in ids]
    alone = np.flatnonzero((counts[has_any] == 1) & (of_firsts[0] == 0))
    # Transposed, since a reduction along short rows takes seven times as long.
    fillers = alone[~raw.take(firsts[alone], axis=0).T.copy().any(axis=0)]
    if all(
        _same_ids(of_particles, of_events[has_any], firsts, of_first, fillers)
        for (of_particles, of_events), of_first in zip(ids, of_firsts, strict=True)
    ):
        return firsts[fillers]
    expected = np.repeat(events.raw[:, :num_ids], counts, axis=0)
    wrong = (raw[:, :num_ids] != expected).any(axis=1)  # unlike their bytes, 0 and -0 are equal
    wrong[firsts[fillers]] = False
    for one in events.broken:
        wrong &= np.repeat(~np.isin(np.arange(len(counts)), one.rows), counts)
    if wrong.any():
        particle = int(np.argmax(wrong))
        row = events.first_row + int(np.searchsorted(offsets, particle, side="right")) - 1
        raise BadRowsError(
            f"{where}: a particle of row {row} has ids {_text(raw[particle, :num_ids])}, its event has "
            f"{_text(expected[particle])} ({', '.join(events.ids)}); expected the same"
        )
    return firsts[fillers]


def _first_bytes(raw: Array) -> Array:
    """The first eight bytes of each row. (N,)."""
    return np.ndarray((len(raw),), np.uint64, raw, 0, (raw.strides[0],)).copy()


def _same_ids(of_particles: Array, of_events: Array, firsts: Int64, of_firsts: Array, fillers: Int64) -> bool:
    """True if each particle has its event's id: the id changes only at an event's first particle, and is right there.

    An array of all expected ids would take twice as long.
    """
    changes = np.empty(len(of_particles), np.bool_)
    np.not_equal(of_particles[1:], of_particles[:-1], out=changes[1:])
    changes[firsts] = False
    is_wrong = of_firsts != of_events
    is_wrong[fillers] = False
    return not changes.any() and not is_wrong.any()


def _table(
    raw: Sequence[Array], ids: Mapping[str, Array], raw_events: Array, workload: EventSchema, layout: FlatTables
) -> pa.Table:
    """Table of the workload's source columns for N events, with all numbers of the file.

    ``raw``: particles of each event as stored. ``ids``: by file column, (N,). ``raw_events``: events as stored.
    """
    num_ids = len(layout.ids)
    columns: dict[str, pa.Array] = {name: pa.array(ids[name]) for name in layout.ids}
    columns[layout.event_list] = _lists(raw_events[:, num_ids:])
    particles = _lists(np.concatenate(raw)[:, num_ids:])
    columns[layout.particle_list] = pa.ListArray.from_arrays(
        pa.array(offsets_of(np.array([len(one) for one in raw], np.int64)), pa.int32()), particles
    )
    return pa.table({source.name: columns[source.name] for source in workload.source_columns})


def _lists(values: Array) -> pa.ListArray:
    """Matrix (N, width) as N lists."""
    bounds = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.shape[1])
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(np.ascontiguousarray(values).reshape(-1)))


def _text(ids: Array) -> str:
    return " ".join(f"{float(value):.17g}" for value in ids)
