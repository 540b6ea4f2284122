"""Parquet row groups to ragged rows, in any layout of lists."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.checks import checked, drop_particles
from common.files.file_kind import open_file
from common.files.parquet.lists import BadList, flattened, list_lengths, matrix, null_mask
from common.files.reader import Beat
from common.files.rows import BadRowsError, RaggedRows
from common.input_errors import LIBRARY_ERRORS, one_line, raise_if_machine
from common.messages import Part
from common.ragged import Array
from common.schema import SourceColumn, Workload

_OPEN_FILES = 16
_OPEN_SCANS = 4
_BUFFER_BYTES = 1 << 20
"""Of each column of a file that isn't mapped: else a row group's column is read at once."""
_SMALL_ROWS = 8_192
_BATCH_ROWS = 16_384
_ORDERED_BATCH_ROWS = 28_672
"""Larger batches are faster, by 3 % from the one to the other, and take memory. A gather needs some of it."""


class ParquetReader:
    """See Reader."""

    def __init__(self, workload: Workload, *, shuffled: bool = True) -> None:
        self._workload = workload
        self._shuffled = shuffled
        self._names = [column.name for column in workload.source_columns]
        self._files: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._scans: OrderedDict[tuple[str, int], _Scan] = OrderedDict()

    def read(self, parts: Sequence[Part], beat: Beat = lambda: None, *, large_above: int = 1 << 62) -> list[RaggedRows]:
        """The rows of the parts: see Reader."""
        pieces: list[RaggedRows] = []
        small: list[pa.RecordBatch] = []
        where, first_row = _name(parts[0]), parts[0].first_row

        def flush() -> None:
            nonlocal first_row
            # Small batches as one: what is done once a batch costs as much as thousands of rows.
            joined = pa.Table.from_batches(small).combine_chunks().to_batches() if len(small) > 1 else small
            for batch in joined:
                pieces.append(_to_rows(batch, self._workload, where, first_row, large_above))
                first_row += batch.num_rows
            small.clear()

        for _, of_file in itertools.groupby(parts, lambda part: part.path):
            for batch in self._batches(list(of_file), beat):
                beat()
                if small and (batch.num_rows > _SMALL_ROWS or batch.schema != small[0].schema):
                    flush()
                small.append(batch)
        flush()
        return pieces

    def close(self) -> None:
        """Close all files."""
        for path in list(self._files):
            self._close(path)

    def _batches(self, parts: Sequence[Part], beat: Beat) -> Iterator[pa.RecordBatch]:
        """Record batches of the rows of parts of one file."""
        path, where = parts[0].path, _name(parts[0])
        if not path:
            raise BadRowsError(f"{where}: the file was there when the plan was made, and can't be staged any more")
        try:
            file = self._open(path, own_copy=bool(parts[0].remote))
            whole = all(part.rows == file.metadata.row_group(part.row_group).num_rows for part in parts)
            if whole:
                batches = self._iterate(file, parts)
            else:
                batches = itertools.chain.from_iterable(self._rows_of(file, part, beat) for part in parts)
            num_rows = 0
            for batch in batches:
                num_rows += batch.num_rows
                yield batch
        except (pa.ArrowException, BadInputError, *LIBRARY_ERRORS) as error:
            self._close(path)
            raise_if_machine(error, path)
            raise BadRowsError(f"{where} can't be read: {one_line(error)}") from None
        promised = sum(part.rows for part in parts)
        if num_rows != promised:
            raise BadRowsError(f"{where} has {num_rows} of the {promised} rows that its footer promised")

    def _iterate(self, file: pq.ParquetFile, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """Batches of the row groups of parts: many outliers in few rows would make a batch of any size."""
        usual = _BATCH_ROWS if self._shuffled else _ORDERED_BATCH_ROWS
        rows = min((part.batch_rows for part in parts if part.batch_rows), default=usual)
        groups = [part.row_group for part in parts]
        batches: Iterator[pa.RecordBatch] = file.iter_batches(min(rows, usual), groups, self._names, use_threads=False)
        return batches

    def _rows_of(self, file: pq.ParquetFile, part: Part, beat: Beat) -> Iterator[pa.RecordBatch]:
        """Some rows of a row group. It is decoded from its start only: a scan is kept for who wants the rows behind."""
        key = (part.path, part.row_group)
        scan = self._scans.pop(key, None)
        if scan is None or scan.row > part.first_row:
            scan = _Scan(self._iterate(file, [part]))
        yield from scan.rows(part.first_row, part.rows, beat)
        if part.first_row + part.rows < file.metadata.row_group(part.row_group).num_rows:
            self._scans[key] = scan
            while len(self._scans) > _OPEN_SCANS:
                self._scans.popitem(last=False)

    def _open(self, path: str, *, own_copy: bool) -> pq.ParquetFile:
        file = self._files.pop(path, None)
        if file is None:
            for evicted in [known for known in self._files if not Path(known).exists()]:
                self._close(evicted)  # an open file would keep its disk space
            with open_file(Path(path)) as opened:  # Arrow would wait for ever for a pipe that took the file's place
                # A page of a mapping that can't be read is a SIGBUS. Nobody but us changes copies in the cache.
                file = pq.ParquetFile(
                    f"/proc/self/fd/{opened.fileno()}",
                    memory_map=own_copy,
                    buffer_size=0 if own_copy else _BUFFER_BYTES,
                    page_checksum_verification=True,
                )
        self._files[path] = file
        while len(self._files) > _OPEN_FILES:
            self._close(next(iter(self._files)))
        return file

    def _close(self, path: str) -> None:
        for key in [key for key in self._scans if key[0] == path]:
            del self._scans[key]
        file = self._files.pop(path, None)
        if file is not None:
            file.close()


def _name(part: Part) -> str:
    return f"{part.name}: row group {part.row_group}"


@dataclass
class _Scan:
    """Record batches of row groups, and how far they were read."""

    batches: Iterator[pa.RecordBatch]
    row: int = 0
    """First row of ``rest``, or of the next batch."""
    rest: pa.RecordBatch | None = None

    def rows(self, first: int, num: int, beat: Beat) -> Iterator[pa.RecordBatch]:
        """Rows ``first`` to ``first + num``; fewer if there are no more. ``beat`` is called on the way there, too: on a
        slow disk it may take minutes."""
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


def _to_rows(batch: pa.RecordBatch, workload: Workload, where: str, first_row: int, large_above: int) -> RaggedRows:
    """The checked rows of a record batch. Raises BadRowsError that names column, row and what was expected."""
    arrays: dict[str, Array] = {}
    counts: npt.NDArray[np.int64] | None = None
    is_null = np.zeros(batch.num_rows, np.bool_)
    keep: npt.NDArray[np.bool_] | None = None
    for source in workload.source_columns:
        target = workload.column(source.into)
        lists = batch.column(source.name)
        null = _null_rows(lists, source, workload, where, first_row)
        if source.nesting == 0:
            filled = arrays.setdefault(target.name, np.empty((batch.num_rows, len(target.fields)), target.dtype))
            filled[:, source.field] = (lists if null is None else lists.fill_null(0)).to_numpy(zero_copy_only=False)
        elif source.nesting == 1:
            arrays[target.name] = _matrix(lists, null, source, workload, where, first_row, None)
        else:
            counts = _same(counts, list_lengths(lists), source, where, first_row)
            lists = flattened(lists)
            null_particles = null_mask(lists)
            if null_particles is not None:
                if workload.nulls == "error":
                    row = first_row + _row_of(int(np.argmax(null_particles)), counts)
                    raise BadRowsError(f"{where}, column {source.name!r}, row {row}: a particle is null; {_NULLS_HINT}")
                keep = ~null_particles if keep is None else keep & ~null_particles
            arrays[target.name] = _matrix(lists, null_particles, source, workload, where, first_row, counts)
            continue
        if null is not None:
            is_null |= null
    assert counts is not None, "a workload has a column of particles"
    large = np.flatnonzero(counts > large_above)
    rows = RaggedRows(
        counts=counts,
        event_columns={column.name: arrays[column.name] for column in workload.columns_per("event")},
        particle_columns={column.name: arrays[column.name] for column in workload.columns_per("particle")},
        large=large,
        large_events=pa.Table.from_batches([batch]).take(pa.array(large)),
        is_null=is_null if is_null.any() else None,
    )
    return checked(rows if keep is None else drop_particles(rows, keep), workload, where, first_row)


_NULLS_HINT = 'source.nulls = "empty" would count it as empty'


def _null_rows(
    array: pa.Array, source: SourceColumn, workload: Workload, where: str, first_row: int
) -> npt.NDArray[np.bool_] | None:
    null = null_mask(array)
    if null is not None and workload.nulls == "error":
        row = first_row + int(np.argmax(null))
        raise BadRowsError(f"{where}, column {source.name!r}, row {row}: the value is null; {_NULLS_HINT}")
    return null


def _same(
    known: npt.NDArray[np.int64] | None,
    counts: npt.NDArray[np.int64],
    source: SourceColumn,
    where: str,
    first_row: int,
) -> npt.NDArray[np.int64]:
    """Particle columns of one event have the same length."""
    if known is not None and not np.array_equal(known, counts):
        row = int(np.argmax(known != counts))
        raise BadRowsError(
            f"{where}, column {source.name!r}, row {first_row + row}: {counts[row]} particles; another column has "
            f"{known[row]}"
        )
    return counts


def _matrix(
    lists: pa.Array,
    null: npt.NDArray[np.bool_] | None,
    source: SourceColumn,
    workload: Workload,
    where: str,
    first_row: int,
    counts: npt.NDArray[np.int64] | None,
) -> Array:
    """(N, fields) of N lists; zeros for null ones."""
    column = workload.column(source.into)
    stored = workload.stored_fields(source)
    columns = slice(None) if stored == column.fields else [stored.index(field) for field in column.fields]
    try:
        values = matrix(lists if null is None else lists.drop_null(), len(stored), columns, column.dtype)
    except BadList as error:
        index = error.index if null is None else int(np.flatnonzero(~null)[error.index])
        row = first_row + (index if counts is None else _row_of(index, counts))
        raise BadRowsError(
            f"{where}, column {source.name!r}, row {row}: {error} "
            f"({', '.join(stored)}; source.fields.{source.name} names others)"
        ) from None
    if null is None:
        return values
    filled = np.zeros((len(null), len(column.fields)), column.dtype)
    filled[~null] = values
    return filled


def _row_of(index: int, counts: npt.NDArray[np.int64]) -> int:
    """The row of a particle's list."""
    return int(np.searchsorted(np.cumsum(counts), index, side="right"))
