"""Reader of Parquet row groups as ragged rows, in any layout of lists."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from common.errors import BadInputError
from common.files.file_kind import open_file
from common.files.native import FILES
from common.files.parquet.arrow_file import ArrowFile
from common.files.parquet.batches import to_rows
from common.files.parquet.columns import read_names, schema_problem
from common.files.parquet.footer import DamagedFooter, parse_footer
from common.files.parquet.missing_ids import MissingIds, rows_in_file
from common.files.parquet.plain import PlainFile, PlainRows, UnusualError
from common.files.reader import Beat
from common.files.room import Room
from common.files.rows import BadRowsError, RaggedRows
from common.input_errors import LIBRARY_ERRORS, one_line, raise_if_machine
from common.messages import Part
from common.schema import EventSchema

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
        path, where = parts[0].path, _name(parts[0])
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
                    batch = opened.ids.added_to(batch, rows_in_file(parts, num_rows - batch.num_rows, num_rows))
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


def _name(part: Part) -> str:
    return f"{part.name}: row group {part.row_group}"


@dataclass
class _File:
    """An open file."""

    file: ArrowFile
    names: list[str]
    """Columns to read."""
    ids: MissingIds | None
    """Ids that the file has no columns for; None: it has all."""
    plain: PlainFile | None
    """The same file for reading in C++; None: Arrow reads it."""

    @classmethod
    def of(cls, path: Path, workload: EventSchema, *, own_copy: bool) -> _File:
        """Open a file. Raises BadInputError if it lacks the workload's columns: it may have been replaced since."""
        with open_file(path) as opened:  # Arrow would wait for ever for a pipe that took the file's place
            name = f"/proc/self/fd/{opened.fileno()}"
            # An unreadable page of a mapping is a SIGBUS. Copies in the cache are changed by this run only.
            file = ArrowFile(
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
            plain = None
            if FILES.used is not None and ids is None:
                with suppress(DamagedFooter):  # Arrow reads it, or reports it
                    plain = PlainFile.of(file, opened.fileno(), parse_footer(Path(name)), workload)
            return cls(file, names, ids, plain)

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
