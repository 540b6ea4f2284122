"""Reader of Parquet row groups as ragged rows, in any layout of lists.

R rows, P particles.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import LIBRARY_ERRORS, BadInputError, one_line, raise_if_machine
from common.files.parquet.columns import (
    converted,
    flattened,
    inside,
    list_lengths,
    matrix,
    null_mask,
    read_names,
    schema_problem,
    stored_matrix,
)
from common.files.parquet.footer import DamagedFooter, RowGroupMetadata, footer_digest, parse_footer
from common.files.parquet.plain import PlainFile, PlainRows, UnusualError
from common.files.rows import (
    FILES,
    BadList,
    BadNumber,
    BadRowsError,
    Beat,
    Bool,
    BrokenRule,
    Int64,
    RaggedRows,
    Room,
    checked,
    counted_from_first,
    counts_of_kept,
    drop_particles,
    rows_of_particles,
)
from common.messages import Part
from common.paths import open_file
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array
from common.where import Bounds, event_fields

_ID_BITS = 63
"""Bits of a made id: it fits signed and unsigned columns."""


Number = TypeVar("Number", bound=np.generic)
_NO_NULL = 'none (source.nulls = "empty" would count it as empty)'
_FEW_ROWS = 64
_OPEN_FILES = 16
_OPEN_SCANS = 4
_BUFFER_BYTES = 1 << 16
"""Buffer for each column of a file that isn't mapped: without it, a row group's column is read at once."""
_SMALL_BYTES = 1 << 20
"""Batches up to this size are joined up to it: the fixed cost of a batch is that of copying as much."""
_WAITING_BYTES = 12 << 20
"""Bytes of batches that wait for their conversion."""
_BATCH_ROWS = 16_384
"""Rows of a batch: larger ones take more memory while they are decoded."""


@dataclass(frozen=True)
class MissingIds:
    """Source columns that a file lacks, although its schema has no problem."""

    sources: tuple[SourceColumn, ...]
    workload: EventSchema
    digest: int
    """First id of made ones."""

    @classmethod
    def of(cls, schema: pa.Schema, workload: EventSchema, path: Path) -> MissingIds | None:
        """Ids that the local file has no columns for; None: it has all. Raises OSError, BadInputError."""
        missing = tuple(source for source in workload.source_columns if source.path[0] not in schema.names)
        if not missing:
            return None
        try:
            return cls(missing, workload, int(footer_digest(path), 16) % 2**_ID_BITS)
        except DamagedFooter as error:
            raise BadInputError(f"damaged: {error}") from None

    def added_to(self, batch: pa.RecordBatch, rows: Int64) -> pa.RecordBatch:
        """Record batch with a column for each id. ``rows``: numbers of its rows in the file."""
        for source in self.sources:
            held = self.workload.place_in_list(source)
            ids = self._made(source, rows) if held is None else self._held(batch, source, *held)
            batch = batch.append_column(source.path[0], pa.array(ids))
        return batch

    def _made(self, source: SourceColumn, rows: Int64) -> npt.NDArray[np.integer]:
        """Digest and row as a pair; for ids of one number their sum. (R,)."""
        column = self.workload.column(source.into)
        if len(column.fields) == 1:
            ids = (rows + self.digest % 2 ** (_ID_BITS - 1)).astype(np.int64)
        else:
            ids = rows if source.field == len(column.fields) - 1 else np.full_like(rows, self.digest)
        made: npt.NDArray[np.integer] = ids.astype(column.dtype)
        return made

    def _held(self, batch: pa.RecordBatch, source: SourceColumn, holder: SourceColumn, place: int) -> Array:
        """Numbers at ``place`` of the lists; 0 where a list is null, or wrong, which to_rows() reports. (R,).

        Floats, as stored, if one of them is no whole number: to_rows() reports this, too.
        """
        lists = batch.column(holder.path[0])
        null = null_mask(lists)
        usable = np.ones(len(lists), np.bool_) if null is None else ~null
        ids = np.zeros(len(lists), self.workload.column(source.into).dtype)
        while usable.any():  # once for good lists, and once more for each way in which some are wrong
            chosen = lists if usable.all() else lists.filter(pa.array(usable))
            try:
                stored = matrix(chosen, len(holder.stored), [place], "<f8")[:, 0]
            except BadList as error:
                usable[np.flatnonzero(usable)[error.bad]] = False
                continue
            with np.errstate(invalid="ignore"):  # a number that is no id is changed by the cast, and so detected
                found = stored.astype(ids.dtype)
            if not np.array_equal(found.astype(np.float64), stored):
                ids, found = ids.astype(np.float64), stored
            ids[usable] = found
            break
        return ids


class _BadEvents(Exception):
    """Error for events that don't fit the columns."""

    def __init__(self, broken: BrokenRule) -> None:
        self.broken = broken


def to_rows(batch: pa.RecordBatch, workload: EventSchema, large_above: int, room: Room) -> RaggedRows:
    """Checked rows of a record batch.

    Columns of particles that several columns of the file fill are in ``room``, the others in Arrow's buffers.
    """
    filled, places, broken = dict(room.filled), np.arange(batch.num_rows), list[BrokenRule]()
    while True:  # once for a good batch, and once more for each rule of the columns that an event breaks
        try:
            rows = _converted(batch if not broken else batch.take(pa.array(places)), workload, large_above, room)
        except _BadEvents as error:
            broken.append(error.broken.at(places))
            places = np.delete(places, error.broken.rows)
            room.filled = dict(filled)
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
        large_events=_with_whole_ids(_copied(batch, large), workload) if len(large) else None,
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
        values = self._with_nan(values, source)
        null = self._null_rows(values, source)
        if null is not None:
            self.is_null = null if self.is_null is None else self.is_null | null
        self._fill(values, null, source, None)

    def add_particle_column(self, source: SourceColumn) -> None:
        """Add a column of lists of numbers, or of lists of lists. Raises _BadEvents."""
        lists, names = inside(self._batch.column(source.path[0]), source.path[1:])
        self._null_rows(lists, source)  # a null list has no particles
        counts = list_lengths(lists)
        if self.counts is None:
            self.counts = counts
        elif not np.array_equal(self.counts, counts):
            rows = np.flatnonzero(self.counts != counts)
            found = f"{counts[rows[0]]} particles; another column has {self.counts[rows[0]]}"
            raise self._error(source, rows, found, "the same number in all")
        values, _ = inside(flattened(lists), names)
        values = self._with_nan(values, source)
        null = null_mask(values)
        if null is not None:
            if self._workload.source.nulls == "error":
                raise self._error(source, _rows_of(null, counts), "a particle is null", _NO_NULL)
            self.keep = ~null if self.keep is None else self.keep & ~null
        self._fill(values, null, source, counts)

    def _with_nan(self, values: pa.Array, source: SourceColumn) -> pa.Array:
        """Floats of `source.extra` with NaN for nulls, as which pandas writes it."""
        is_extra = source.name in self._workload.source.extra and pa.types.is_floating(values.type)
        return values.fill_null(float("nan")) if is_extra and values.null_count else values

    def _null_rows(self, values: pa.Array, source: SourceColumn) -> Bool | None:
        null = null_mask(values)
        if null is not None and self._workload.source.nulls == "error":
            raise self._error(source, np.flatnonzero(null), "the value is null", _NO_NULL)
        return null

    def _fill(self, values: pa.Array, null: Bool | None, source: SourceColumn, counts: Int64 | None) -> None:
        """Fill ``source``'s fields of its column; zeros where the value is null."""
        column = self._workload.column(source.into)
        try:
            if null is None:
                numbers = self._numbers(values, source, counts)
            else:
                numbers = self._numbers(
                    values.drop_null(), source, None if counts is None else counts_of_kept(counts, ~null)
                )
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


class ParquetReader:
    """Reader of Parquet files (see Reader)."""

    def __init__(self, workload: EventSchema) -> None:
        self._workload = workload
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._scans: OrderedDict[tuple[str, int], _Scan] = OrderedDict()

    def read(self, parts: Sequence[Part], beat: Beat = lambda: None, *, large_above: int = 1 << 62) -> list[RaggedRows]:
        """The rows of the parts: see Reader."""
        plain = self._plain(parts, beat, large_above)
        if plain is not None:
            return [plain]
        rows = _Rows(self._workload, parts, large_above)
        for _, of_file in itertools.groupby(parts, lambda part: part.path):
            for batch in self._batches(list(of_file), beat):
                beat()
                rows.add(batch)
        return rows.all()

    def bounds(self, part: Part) -> Bounds:
        """Bounds of event columns in the row group of a part: see Reader."""
        known: dict[str, tuple[float, float]] = {}
        with suppress(OSError, BadInputError, MemoryError, pa.ArrowException, *LIBRARY_ERRORS):  # read() reports them
            groups = self._open(part.path, own_copy=bool(part.remote)).row_groups[part.row_group :][:1]
            for name, (column, field) in event_fields(self._workload).items():
                for source in self._workload.source_columns:
                    of_source = [one.bounds for group in groups for one in group.columns if one.is_of(source.name)]
                    if source.into == column and source.field in (None, field) and of_source and of_source[0]:
                        known[name] = of_source[0]
        return known

    def close(self) -> None:
        """Close all files."""
        for path in list(self._files):
            self._close(path)

    def _plain(self, parts: Sequence[Part], beat: Beat, large_above: int) -> RaggedRows | None:
        """The rows of the parts, read in C++; None: Arrow must read them, or report why they can't be read."""
        library = FILES.used
        if library is None or any(part.first_row or part.batch_rows or not part.path for part in parts):
            return None
        rows: PlainRows | None = None
        try:
            for part in parts:
                opened = self._open(part.path, own_copy=bool(part.remote))
                if opened.plain is None or not opened.is_whole(part):
                    return None
                if rows is None:
                    promised = sum(one.rows for one in parts), sum(one.particles for one in parts)
                    rows = PlainRows(library, self._workload, *promised)
                rows.add(opened.plain, part.row_group, part.rows)
                beat()
            return None if rows is None else rows.all(large_above)
        except UnusualError:
            opened.read_by_arrow()  # the next units of this file are read faster without a try
            return None
        except (BadInputError, MemoryError, pa.ArrowException, *LIBRARY_ERRORS):
            return None

    def _batches(self, parts: Sequence[Part], beat: Beat) -> Iterator[pa.RecordBatch]:
        """Record batches with the rows of parts of one file."""
        path, where = parts[0].path, f"{parts[0].name}: row group {parts[0].row_group}"
        if not path:
            raise BadRowsError(f"{where}: the file was there when the plan was made, and can't be staged any more")
        try:
            opened = self._open(path, own_copy=bool(parts[0].remote))
            whole = all(part.rows == opened.rows_of(part.row_group) for part in parts)
            if whole:
                batches = self._iterate(opened, parts)
            else:
                batches = itertools.chain.from_iterable(self._rows_of(opened, part, beat) for part in parts)
            num_rows = 0
            for batch in batches:
                num_rows += batch.num_rows
                if opened.ids is not None:
                    firsts = [(part.file_row + part.first_row, part.rows) for part in parts]
                    file_rows = np.concatenate([np.arange(first, first + rows) for first, rows in firsts])
                    batch = opened.ids.added_to(batch, file_rows[num_rows - batch.num_rows : num_rows])
                yield batch
        except (pa.ArrowException, BadInputError, *LIBRARY_ERRORS) as error:
            self._close(path)
            raise_if_machine(error, path)
            raise BadRowsError(f"{where} can't be read: {one_line(error)}") from None
        promised = sum(part.rows for part in parts)
        if num_rows != promised:
            raise BadRowsError(f"{where} has {num_rows} of the {promised} rows that its footer promised")

    def _iterate(self, opened: _File, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """Batches of the parts' row groups, limited in rows: many outliers could make a batch of any size."""
        rows = min((part.batch_rows for part in parts if part.batch_rows), default=_BATCH_ROWS)
        groups = [part.row_group for part in parts]
        batches: Iterator[pa.RecordBatch] = opened.file.iter_batches(
            min(rows, _BATCH_ROWS), groups, opened.names, use_threads=False
        )
        return batches

    def _rows_of(self, opened: _File, part: Part, beat: Beat) -> Iterator[pa.RecordBatch]:
        """Rows of a part of a row group. Decoding must begin at its start: a scan is kept for later rows."""
        key = (part.path, part.row_group)
        scan = self._scans.pop(key, None)
        if scan is None or scan.row > part.first_row:
            scan = _Scan(self._iterate(opened, [part]))
        yield from scan.rows(part.first_row, part.rows, beat)
        if part.first_row + part.rows < opened.rows_of(part.row_group):
            self._scans[key] = scan
            while len(self._scans) > _OPEN_SCANS:
                self._scans.popitem(last=False)

    def _open(self, path: str, *, own_copy: bool) -> _File:
        opened = self._files.pop(path, None)
        if opened is None:
            for evicted in [known for known in self._files if not Path(known).exists()]:
                self._close(evicted)  # an open file would keep its disk space
            opened = _File.of(Path(path), self._workload, own_copy=own_copy)
        self._files[path] = opened
        while len(self._files) > _OPEN_FILES:
            self._close(next(iter(self._files)))
        return opened

    def _close(self, path: str) -> None:
        for key in [key for key in self._scans if key[0] == path]:
            del self._scans[key]
        opened = self._files.pop(path, None)
        if opened is not None:
            opened.file.close()
            opened.read_by_arrow()


class _Rows:
    """Rows of all batches of one read. Batches wait for their conversion, since that of several in a row is faster:
    between two batches, Arrow's decoding drives its code and data out of the CPU's cache."""

    def __init__(self, workload: EventSchema, parts: Sequence[Part], large_above: int) -> None:
        self._workload = workload
        self._large_above = large_above
        self._room = Room(sum(part.particles for part in parts))
        self._pieces: list[RaggedRows] = []
        self._waiting: list[list[pa.RecordBatch]] = []
        """Batches that will be joined, in lists."""
        self._joined_bytes = 0
        """Size of the last of these lists."""
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next batch."""
        num_bytes = batch.nbytes
        last = self._waiting[-1] if self._waiting else []
        if last and self._joined_bytes + num_bytes <= _SMALL_BYTES and batch.schema == last[0].schema:
            last.append(batch)
        else:
            if self._waiting_bytes > _WAITING_BYTES:
                self._convert()
            self._waiting.append([batch])
            self._joined_bytes = 0
        self._joined_bytes += num_bytes
        self._waiting_bytes += num_bytes

    def all(self) -> list[RaggedRows]:
        """All rows."""
        self._convert()
        return self._pieces

    def _convert(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for batches in waiting:
            joined = pa.Table.from_batches(batches).combine_chunks().to_batches() if len(batches) > 1 else batches
            for batch in joined:
                self._pieces.append(to_rows(batch, self._workload, self._large_above, self._room))


@dataclass
class _File:
    """An open file."""

    file: pq.ParquetFile
    names: list[str]
    """Columns to read."""
    ids: MissingIds | None
    """Ids that the file has no columns for; None: it has all."""
    row_groups: tuple[RowGroupMetadata, ...]
    """Metadata of the row groups; none if only Arrow can read them."""
    plain: PlainFile | None
    """The same file for reading in C++; None: Arrow reads it."""

    @classmethod
    def of(cls, path: Path, workload: EventSchema, *, own_copy: bool) -> _File:
        """Open a file. Raises BadInputError if it lacks the workload's columns: it may have been replaced since."""
        with open_file(path) as opened:  # Arrow would wait for ever for a pipe that took the file's place
            name = f"/proc/self/fd/{opened.fileno()}"
            # An unreadable page of a mapping is a SIGBUS. Copies in the cache are changed by this run only.
            file = pq.ParquetFile(
                name,
                memory_map=own_copy,
                buffer_size=0 if own_copy else _BUFFER_BYTES,
                pre_buffer=False,  # it would read all row groups of the unit at once, whatever the buffer's size
                page_checksum_verification=True,
            )
            schema = file.schema_arrow
            problem = schema_problem(schema, workload)
            if problem:
                file.close()
                raise BadInputError(problem)
            leaves = [file.schema.column(i).path for i in range(len(file.schema))]
            names, ids = list(read_names(schema, leaves, workload).values()), MissingIds.of(schema, workload, path)
            plain: PlainFile | None = None
            row_groups: tuple[RowGroupMetadata, ...] = ()
            with suppress(DamagedFooter):  # Arrow reads it, or reports it
                footer = parse_footer(Path(name))
                row_groups = footer.row_groups
                if FILES.used is not None and ids is None:
                    plain = PlainFile.of(file, opened.fileno(), footer, workload)
            return cls(file, names, ids, row_groups, plain)

    def read_by_arrow(self) -> None:
        """Leave this file to Arrow from now on."""
        if self.plain is not None:
            self.plain.close()
            self.plain = None

    def is_whole(self, part: Part) -> bool:
        """True if the part has all rows of its row group, by the file's metadata."""
        return part.row_group < self.file.metadata.num_row_groups and part.rows == self.rows_of(part.row_group)

    def rows_of(self, row_group: int) -> int:
        """Rows of a row group."""
        rows: int = self.file.metadata.row_group(row_group).num_rows
        return rows


@dataclass
class _Scan:
    """Record batches of row groups, and the position reached in them."""

    batches: Iterator[pa.RecordBatch]
    row: int = 0
    """First row of ``rest``, or of the next batch."""
    rest: pa.RecordBatch | None = None

    def rows(self, first: int, num: int, beat: Beat) -> Iterator[pa.RecordBatch]:
        """Rows ``first`` to ``first + num``; fewer if there are no more. ``beat`` is also called while rows are
        skipped: on a slow disk that may take minutes."""
        end = first + num
        while self.row < end:
            beat()
            batch = self.rest if self.rest is not None else next(self.batches, None)
            self.rest = None
            if batch is None:
                return
            start, stop = max(first - self.row, 0), min(end - self.row, batch.num_rows)
            if stop < batch.num_rows:
                self.rest = batch.slice(max(stop, 0))
            self.row += max(stop, 0)
            if start < stop:
                yield batch.slice(start, stop - start)
