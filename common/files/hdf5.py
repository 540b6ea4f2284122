"""HDF5 files of flat tables (see FlatTables in schema.py): checked, their content for the plan, and ragged rows.

Every error of HDF5 becomes one of two: MachineError, or BadFileError. Files are untrusted: links to outside of the file
are not followed. HDF5 protects its structures by checksums only in files of its newer formats, and reads a chunk that
it does not find as zeros. So check_storage() runs before any number is trusted: every chunk exists once, has a possible
size, passes all of the filters of its dataset (checksums are one), and shares no byte with another.

Spans of rows replace row groups, which HDF5 does not have. R rows, P particles.
"""

from __future__ import annotations

import errno
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.config import StreamConfig
from common.errors import LIBRARY_ERRORS, BadInputError, MachineError, one_line, raise_if_machine
from common.files.local import BadFileError, check_largest
from common.files.parquet.columns import lists_of
from common.files.parquet.footer import MOST_ROW_GROUPS, fields_problem
from common.files.parquet.reader import to_rows
from common.files.rows import BadRowsError, Beat, Bool, Int64, RaggedRows, Room, counts_of_kept, offsets_of
from common.messages import Part
from common.paths import open_file
from common.plan import Footer, RowGroup, SlotCapacity, cut_spans
from common.schema import EventSchema, no_tables
from common.unit_arrays import Array
from common.where import Bounds

_STANDARD_TYPES = tuple(
    getattr(h5py.h5t, f"{family}{bits}{order}")
    for family, sizes in (("IEEE_F", (32, 64)), ("STD_I", (8, 16, 32, 64)), ("STD_U", (8, 16, 32, 64)))
    for bits in sizes
    for order in ("LE", "BE")
)
_NO_MEMORY = re.compile(r"memory allocation failed|(?:unable|can't|cannot) (?:to )?allocate", re.IGNORECASE)
_CACHE_BYTES = 8 << 20
MOST_CACHE_BYTES = 256 << 20

_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_LZF)
"""Filters that are run: others (n-bit, scale-offset, plugins) end the process at some damaged bytes."""
_KEEPS_SIZE = {h5py.h5z.FILTER_SHUFFLE: 0, h5py.h5z.FILTER_FLETCHER32: 4}
"""Filters that keep the size of a chunk, up to the given number of added bytes."""
_MOST_COMPRESSION = 4096
"""Maximum compression accepted: no real table has more; beyond it a damaged chunk size would only take memory."""
_MOST_CHUNKS = 1 << 19
_MOST_CHUNK_BYTES = MOST_CACHE_BYTES // 2
"""Maximum size of a chunk: it is decompressed as a whole, and kept while slices of it are read."""


@dataclass(frozen=True)
class Table:
    """Dataset of numbers: (N,) or (N, width)."""

    name: str
    dataset: h5py.h5d.DatasetID
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    """Type after reading: in this machine's byte order."""

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return self.shape[0]

    def read(self, first: int, num: int) -> Array:
        """Rows ``first`` to ``first + num``. Raises MachineError, BadFileError."""
        shape = (num, *self.shape[1:])
        out = np.empty(shape, self.dtype)
        if not num:
            return out
        with hdf5_errors(f"dataset {self.name!r} can't be read"):
            space = self.dataset.get_space()
            space.select_hyperslab((first, *(0 for _ in self.shape[1:])), shape)
            self.dataset.read(h5py.h5s.create_simple(shape), space, out)
        return out


@dataclass(frozen=True)
class Tables:
    """Datasets of an open file: events, particles and counts."""

    file: h5py.File
    events: Table
    particles: Table
    counts: Table
    path: Path
    descriptor: int
    """Descriptor of the file, which HDF5 owns."""
    size_bytes: int
    """Size of the file when it was opened."""

    def check_size(self) -> None:
        """Raise BadFileError if the file was truncated since it was opened: HDF5 reads missing bytes as zeros."""
        with hdf5_errors("its size can't be determined", self.path):
            size_bytes = os.fstat(self.descriptor).st_size
        if size_bytes < self.size_bytes:
            raise BadFileError(f"truncated from {self.size_bytes} to {size_bytes} bytes while it was read")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def open_tables(path: Path, workload: EventSchema) -> Tables:
    """Tables of the file, with the workload's columns. Raises MachineError, BadFileError."""
    layout = workload.tables
    if layout is None:
        raise BadFileError(no_tables(workload))
    with hdf5_errors("truncated, or damaged", path):
        try:
            opened = open_file(path)
        except BadInputError as error:
            raise BadFileError(str(error)) from None
        with opened:  # HDF5 would wait for ever for a pipe that took the file's place
            name = f"/proc/self/fd/{opened.fileno()}"
            file = h5py.File(name, "r", locking=False)  # no lock: the file system may be read-only
    try:
        with hdf5_errors("its size can't be determined", path):
            descriptor = file.id.get_vfd_handle()
            size_bytes = os.fstat(descriptor).st_size
        counts = _open(file, layout.counts, "iu", 1)
        events = _open(file, layout.events, "f", 2)
        particles = _open(file, layout.particles, "f", 2)
        if events.rows != counts.rows:
            raise BadFileError(
                f"dataset {layout.events!r} has {events.rows} rows, and {layout.counts!r} has {counts.rows}; "
                "expected one of each for every event",
                counts.rows,
            )
        num_ids = len(layout.ids)
        of_lists = {layout.event_list: events, layout.particle_list: particles}
        problem = fields_problem(workload, {name: table.shape[1] - num_ids for name, table in of_lists.items()})
        if problem:
            raise BadFileError(f"behind the {num_ids} ids, {problem}", counts.rows)
    except BaseException:
        file.close()
        raise
    return Tables(file, events, particles, counts, path, descriptor, size_bytes)


def read_counts(tables: Tables, first: int, num: int) -> npt.NDArray[np.int64]:
    """Particles of each of ``num`` events. Raises MachineError, and BadFileError if a count is negative."""
    counts = tables.counts.read(first, num).astype(np.int64)  # larger unsigned counts become negative
    if num and counts.min() < 0:
        row = int(np.argmax(counts < 0))
        raise BadFileError(
            f"dataset {tables.counts.name!r}, row {first + row}: {counts[row]} particles; expected 0 or more",
            tables.counts.rows,
        )
    return counts


@contextmanager
def hdf5_errors(what: str, path: str | os.PathLike[str] = "HDF5") -> Iterator[None]:
    """Errors of HDF5 and h5py, turned into MachineError or BadFileError."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        number = getattr(error, "errno", None)
        if not number:  # HDF5 gives the kernel's error in its text only
            found = re.search(r"errno = (\d+)", str(error))
            number = errno.ENOMEM if _NO_MEMORY.search(str(error)) else int(found[1]) if found else 0
        raise_if_machine(OSError(number, os.strerror(number)) if number else error, path)
        raise BadFileError(f"{what}: {one_line(error)}") from None


def _open(file: h5py.File, name: str, kinds: str, num_dimensions: int) -> Table:
    with hdf5_errors(f"dataset {name!r} can't be opened"):
        link = file.get(name, getlink=True)
        if link is None:
            there = ", ".join(repr(other) for other in list(file)[:20]) or "none"
            raise BadFileError(f"dataset {name!r} is missing; the file has {there}")
        if not isinstance(link, h5py.HardLink):
            raise BadFileError(f"{name!r} is a link to elsewhere; expected a dataset in this file")
        opened = file.get(name)
        if not isinstance(opened, h5py.Dataset):
            raise BadFileError(f"{name!r} is no dataset")
        properties = opened.id.get_create_plist()
        if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
            raise BadFileError(f"dataset {name!r} keeps its numbers in other files; expected them in this one")
        dtype, kind = opened.dtype, opened.id.get_type()
        if dtype.kind not in kinds or not any(kind.equal(standard) for standard in _STANDARD_TYPES):
            expected = "float32 or float64" if kinds == "f" else "integers"
            raise BadFileError(f"dataset {name!r} has numbers of type {dtype}; expected {expected}")
        if opened.shape is None or len(opened.shape) != num_dimensions:
            raise BadFileError(f"dataset {name!r} has shape {opened.shape}; expected {num_dimensions} dimensions")
        shape, dataset = tuple(opened.shape), opened.id
        if properties.get_layout() == h5py.h5d.CHUNKED:
            chunk_bytes = dtype.itemsize * int(np.prod([int(n) for n in properties.get_chunk()]))
            if _CACHE_BYTES < 2 * chunk_bytes <= MOST_CACHE_BYTES:
                # A chunk larger than the cache would be decompressed again for each of its slices.
                access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
                access.set_chunk_cache(521, 2 * chunk_bytes, 0.75)
                dataset = h5py.h5d.open(file.id, name.encode(), access)
    return Table(name, dataset, shape, dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True)
class _Extent:
    start: int
    end: int
    name: str
    row: int = 0
    """First row of the chunk."""


def check_storage(tables: Tables) -> None:
    """Raise BadFileError if a dataset's bytes can't be those that were written."""
    rows = tables.counts.rows
    try:
        of_tables = [(table, _extents(table)) for table in (tables.counts, tables.events, tables.particles)]
        extents = [extent for _, of_table in of_tables for extent in of_table]
        extents.sort(key=lambda extent: extent.start)
        end, owner = 0, "the file's header"
        for extent in extents:
            if extent.start < end:
                raise BadFileError(f"damaged: bytes of dataset {extent.name!r} are also those of {owner}")
            end, owner = extent.end, f"{extent.name!r}"
        if end > tables.size_bytes:
            raise BadFileError(f"truncated, or damaged: {owner} ends at byte {end}, the file at {tables.size_bytes}")
    except BadFileError as error:
        raise BadFileError(str(error), rows) from None
    for table, of_table in of_tables:
        _decode_smallest(table, of_table)


def _decode_smallest(table: Table, extents: Sequence[_Extent]) -> None:
    """Decode the chunk of the fewest bytes: what ends a process does so here, where the file is known and named.

    Rows that can't be read are the decoder's to tell, and so is a machine without memory.
    """
    if not extents:
        return
    row = min(extents, key=lambda extent: extent.end - extent.start).row
    try:
        table.read(row, 1)
    except BadFileError:
        pass
    except MachineError as error:
        if error.number != errno.ENOMEM:
            raise


def _extents(table: Table) -> list[_Extent]:
    with hdf5_errors(f"dataset {table.name!r} is damaged"):
        properties = table.dataset.get_create_plist()
        layout = properties.get_layout()
        if layout == h5py.h5d.CHUNKED:
            return _chunks(table, properties)
        num_bytes = prod(table.shape) * table.dtype.itemsize
        if table.dataset.get_storage_size() != num_bytes:
            raise BadFileError(
                f"dataset {table.name!r} is stored in {table.dataset.get_storage_size()} bytes; expected {num_bytes}"
            )
        if layout != h5py.h5d.CONTIGUOUS or not num_bytes:
            return []  # a compact one lies in its header
        start = table.dataset.get_offset()
        if start is None:
            raise BadFileError(f"dataset {table.name!r} was never written")
        return [_Extent(start, start + num_bytes, table.name)]


def _bits(flags: Iterable[bool]) -> int:
    """Mask with bit i set where flag i is."""
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _chunks(table: Table, properties: h5py.h5p.PropDCID) -> list[_Extent]:
    shape = tuple(int(n) for n in properties.get_chunk())
    chunk_bytes = table.dtype.itemsize * prod(shape)
    filters, flags = [], []
    for i in range(properties.get_nfilters()):
        code, flag, *_ = properties.get_filter(i)
        if code not in _FILTERS:
            raise BadFileError(
                f"dataset {table.name!r}: filter {code} is not read; expected gzip, lzf, shuffle or fletcher32: write"
                " the file anew with `h5repack -f GZIP=4`"
            )
        filters.append(code)
        flags.append(flag)
    # A compression may be left out for a chunk that it would not make smaller; nothing else may.
    compressions = [code not in _KEEPS_SIZE for code in filters]
    may_skip = _bits(c and bool(flag & h5py.h5z.FLAG_OPTIONAL) for c, flag in zip(compressions, flags, strict=True))
    stored_bytes = chunk_bytes + sum(_KEEPS_SIZE.get(one, 0) for one in filters)
    expected = prod(ceil(n / size) for n, size in zip(table.shape, shape, strict=True))
    if expected > _MOST_CHUNKS or chunk_bytes > _MOST_CHUNK_BYTES:
        raise BadFileError(
            f"dataset {table.name!r} has {expected} chunks of {chunk_bytes} bytes; at most {_MOST_CHUNKS} of at most "
            f"{_MOST_CHUNK_BYTES} are read"
        )
    if table.dataset.get_num_chunks() != expected:
        raise BadFileError(
            f"dataset {table.name!r} has {table.dataset.get_num_chunks()} of the {expected} chunks that make it up"
        )
    places: list[tuple[int, ...]] = []
    extents: list[_Extent] = []

    def see(chunk: h5py.h5d.StoreInfo) -> None:
        places.append(tuple(chunk.chunk_offset))
        extents.append(_Extent(chunk.byte_offset, chunk.byte_offset + chunk.size, table.name, places[-1][0]))
        if chunk.filter_mask & ~may_skip:
            raise BadFileError(
                f"dataset {table.name!r}: a chunk says that it skips filters, as no writer of tables does"
            )
        exact = not _bits(compressions) & ~chunk.filter_mask
        if (
            exact and chunk.size != stored_bytes
        ) or not stored_bytes - chunk_bytes < chunk.size <= stored_bytes + chunk_bytes // 2 + 4096:
            raise BadFileError(f"dataset {table.name!r}: a chunk of {chunk.size} bytes; expected {stored_bytes}")
        if chunk_bytes > _MOST_COMPRESSION * chunk.size:
            raise BadFileError(f"dataset {table.name!r}: a chunk of {chunk.size} bytes for {chunk_bytes}")

    table.dataset.chunk_iter(see)
    if not places:
        return []
    numbers = np.asarray(places) / np.asarray(shape)
    in_order = np.unique(numbers, axis=0)
    last = [ceil(n / size) - 1 for n, size in zip(table.shape, shape, strict=True)]
    if len(in_order) != expected or (numbers % 1).any() or (numbers < 0).any() or (numbers > last).any():
        raise BadFileError(f"dataset {table.name!r}: its chunks don't cover it")
    return extents


# -------------------------------------------------------------- content and rows


_LEAST_ROWS = 4_096
_MOST_ROWS = 65_536
_GROUPS_A_UNIT = 4

_OPEN_FILES = 16


def read_hdf5_footer(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """Spans of the file's rows, with the exact particles of each, fillers included. Raises BadFileError."""
    with hdf5_errors("unreadable", path), closing(open_tables(path, workload)) as tables:
        check_storage(tables)
        return Footer(tuple(_row_groups(tables, stream, capacity)))


def _row_groups(tables: Tables, stream: StreamConfig, capacity: SlotCapacity) -> Iterator[RowGroup]:
    """Spans, read one at a time: a compressed dataset of counts may be far larger than its file."""
    name, all_rows = tables.counts.name, tables.counts.rows
    # The fewer rows, the better a unit mixes files, and the more often a chunk is read twice.
    rows = min(max(stream.unit_events // _GROUPS_A_UNIT, _LEAST_ROWS), _MOST_ROWS)
    if all_rows > rows * MOST_ROW_GROUPS:
        raise BadFileError(f"dataset {name!r} has {all_rows} rows; at most {rows * MOST_ROW_GROUPS} are read", all_rows)
    particles = 0
    for first in range(0, all_rows, rows):
        counts = read_counts(tables, first, min(rows, all_rows - first))
        # As floats, too: a damaged count may be so large that the sum of integers overflows.
        in_span = int(counts.sum(dtype=np.float64))
        particles += in_span
        if particles > tables.particles.rows:
            continue  # the file can't be used: only the total is needed, for the message
        check_largest(counts, capacity.largest_event, f"rows {first} to {first + len(counts) - 1}")
        fits = capacity.fits(len(counts), in_span)
        yield RowGroup(len(counts), in_span, () if fits else cut_spans(counts, capacity, stream))
    if particles != tables.particles.rows:
        raise BadFileError(
            f"dataset {name!r} counts {particles} particles, and {tables.particles.name!r} has "
            f"{tables.particles.rows} rows; expected as many",
            all_rows,
        )


class Hdf5Reader:
    """Reader of HDF5 files (see Reader). A row group is a span of rows chosen by the fetcher: HDF5 has none."""

    def __init__(self, workload: EventSchema) -> None:
        assert workload.tables is not None
        self._workload = workload
        self._layout = workload.tables
        self._files: OrderedDict[str, Tables] = OrderedDict()

    def bounds(self, part: Part) -> Bounds:
        """Return nothing: HDF5 has no statistics."""
        return {}

    def read(self, parts: Sequence[Part], beat: Beat = lambda: None, *, large_above: int = 1 << 62) -> list[RaggedRows]:
        """Return the rows of the parts: see Reader."""
        pieces: list[RaggedRows] = []
        for part in parts:
            first = part.file_row + part.first_row
            where = f"{part.name}: rows {first} to {first + part.rows - 1}"
            if not part.path:
                raise BadRowsError(f"{where}: the file was there when the plan was made, and can't be staged any more")
            try:
                tables = self._open(part.path)
                pieces.append(self._rows(tables, part, where, large_above))
                beat()
                tables.check_size()
            except BadFileError as error:
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

    def _rows(self, tables: Tables, part: Part, where: str, large_above: int) -> RaggedRows:
        """Return the checked rows of a part."""
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
        events = tables.events.read(first, part.rows)
        raw = tables.particles.read(before, num)
        batch, num_fillers = self._batch(events, raw, counts, first, where)
        rows = to_rows(batch, self._workload, large_above, Room(num))
        return replace(rows, particles_dropped=rows.particles_dropped + num_fillers)

    def _batch(self, events: Array, raw: Array, counts: Int64, first: int, where: str) -> tuple[pa.RecordBatch, int]:
        """Return the source columns of the workload without fillers, and the number of these.

        ``events``, ``raw``: rows of events and of their particles as stored, ids first. ``first``: row of the first
        event in the file.
        """
        num_ids = len(self._layout.ids)
        columns: dict[str, pa.Array] = {}
        is_known = np.ones(len(events), np.bool_)
        for place, name in enumerate(self._layout.ids):
            stored = events[:, place].copy()
            with np.errstate(invalid="ignore"):  # a number that is no id is changed by the cast, and so detected
                ids = stored.astype(self._workload.column(self._workload.source_column(name).into).dtype)
            is_whole = ids.astype(stored.dtype) == stored
            is_known &= is_whole
            columns[name] = pa.array(ids if is_whole.all() else stored)  # to_rows() reports those that are none
        is_filler = self._fillers(raw, counts, events, is_known, first, where)
        num_fillers = int(np.count_nonzero(is_filler))
        if num_fillers:
            counts = counts_of_kept(counts, ~is_filler)
            raw = raw[~is_filler]
        columns[self._layout.event_list] = lists_of(events[:, num_ids:])
        columns[self._layout.particle_list] = pa.ListArray.from_arrays(
            pa.array(offsets_of(counts), pa.int32()), lists_of(raw[:, num_ids:])
        )
        return pa.record_batch({one.name: columns[one.name] for one in self._workload.source_columns}), num_fillers

    def _fillers(self, raw: Array, counts: Int64, events: Array, is_known: Bool, first: int, where: str) -> Bool:
        """Return True for fillers: particles of zeros only, each the only one of its event. (P,).

        Every other particle must have the ids of its event, if these are known: raises BadRowsError that names the
        first that differs. Which event it belongs to is unknown then, and with it whether others are whole.
        """
        offsets, ids = offsets_of(counts), self._layout.ids
        is_filler = np.zeros(len(raw), np.bool_)
        alone = offsets[:-1][counts == 1]
        is_filler[alone] = ~raw[alone].any(axis=1)
        wrong = np.zeros(len(raw), np.bool_)
        for place in range(len(ids)):  # a reduction along short rows takes seven times as long
            wrong |= raw[:, place] != np.repeat(events[:, place], counts)
        wrong &= ~is_filler & np.repeat(is_known, counts)
        if wrong.any():
            particle = int(np.argmax(wrong))
            event = int(np.searchsorted(offsets, particle, side="right")) - 1
            raise BadRowsError(
                f"{where}, dataset {self._layout.particles!r}: a particle of row {first + event} has ids "
                f"{_text(raw[particle, : len(ids)])}, its event has {_text(events[event, : len(ids)])} "
                f"({', '.join(ids)}); expected the same"
            )
        return is_filler

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


def _text(ids: Array) -> str:
    return " ".join(f"{float(value):.17g}" for value in ids)
