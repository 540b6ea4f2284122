"""HDF5 files of flat tables (see FlatTables in schema.py): opened, checked in shape and type, read in slices.

Every error of HDF5 becomes one of two: MachineError, or BadTables for the file. Files are untrusted: links to outside
of the file are not followed.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.files.file_kind import open_file
from common.files.hdf5.stored import StoredRows
from common.files.other_fields import fields_problem
from common.input_errors import LIBRARY_ERRORS, one_line, raise_if_machine
from common.schema import NO_TABLES, EventSchema
from common.unit_arrays import Array

_STANDARD_TYPES = tuple(
    getattr(h5py.h5t, f"{family}{bits}{order}")
    for family, sizes in (("IEEE_F", (32, 64)), ("STD_I", (8, 16, 32, 64)), ("STD_U", (8, 16, 32, 64)))
    for bits in sizes
    for order in ("LE", "BE")
)
_NO_MEMORY = re.compile(r"memory allocation failed|(?:unable|can't|cannot) (?:to )?allocate", re.IGNORECASE)
_CACHE_BYTES = 8 << 20
MOST_CACHE_BYTES = 256 << 20


class BadTables(Exception):
    """Error for a file that can't be used: the text names the dataset and the expectation, but not the file."""

    def __init__(self, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.rows = rows
        """Number of events in the file, as far as known."""


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

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def read(self, first: int, num: int, out: Array | None = None) -> Array:
        """Rows ``first`` to ``first + num``, into ``out`` if given. Raises MachineError, BadTables."""
        shape = (num, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        if not num:
            return out
        with hdf5_errors(f"dataset {self.name!r} can't be read"):
            if self._stored is not None and self._stored.read(first, out):
                return out  # else the file is shorter than it was, and HDF5 reports it
            space = self.dataset.get_space()
            space.select_hyperslab((first, *(0 for _ in self.shape[1:])), shape)
            self.dataset.read(h5py.h5s.create_simple(shape), space, out)
        return out

    @cached_property
    def in_one_piece(self) -> int | None:
        """Offset of the first row in the file, if all rows lie one after the other; else None.

        Raises MachineError, BadTables.
        """
        with hdf5_errors(f"dataset {self.name!r} can't be read"):
            stored = self._stored
        if stored is None or stored.starts.size != 1 or stored.chunk_width != math.prod(self.shape[1:]):
            return None  # a chunk may be wider than its table
        return int(stored.starts[0, 0])

    @cached_property
    def _stored(self) -> StoredRows | None:
        return StoredRows.of(self.dataset)


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
        """Raise BadTables if the file was truncated since it was opened: HDF5 reads missing bytes as zeros."""
        size_bytes = _size_bytes(self.descriptor, self.path)
        if size_bytes < self.size_bytes:
            raise BadTables(f"truncated from {self.size_bytes} to {size_bytes} bytes while it was read")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def open_tables(path: Path, workload: EventSchema) -> Tables:
    """Tables of the file, with the workload's columns. Raises MachineError, BadTables."""
    layout = workload.tables
    if layout is None:
        raise BadTables(NO_TABLES.format(workload.name))
    file = open_hdf5(path)
    try:
        with hdf5_errors("its size can't be determined", path):
            descriptor = file.id.get_vfd_handle()
        size_bytes = _size_bytes(descriptor, path)
        counts = _open(file, layout.counts, "iu", 1)
        events = _open(file, layout.events, "f", 2)
        particles = _open(file, layout.particles, "f", 2)
        if events.rows != counts.rows:
            raise BadTables(
                f"dataset {layout.events!r} has {events.rows} rows, and {layout.counts!r} has {counts.rows}; "
                "expected one of each for every event",
                counts.rows,
            )
        _check_widths({layout.event_list: events, layout.particle_list: particles}, workload, counts.rows)
    except BaseException:
        file.close()
        raise
    return Tables(file, events, particles, counts, path, descriptor, size_bytes)


def open_hdf5(path: Path) -> h5py.File:
    """The open file. Raises MachineError, BadTables."""
    with hdf5_errors("truncated, or damaged", path):
        try:
            opened = open_file(path)
        except BadInputError as error:
            raise BadTables(str(error)) from None
        with opened:  # HDF5 would wait for ever for a pipe that took the file's place
            name = f"/proc/self/fd/{opened.fileno()}"
            return h5py.File(name, "r", locking=False)  # no lock: the file system may be read-only


def read_counts(tables: Tables, first: int, num: int) -> npt.NDArray[np.int64]:
    """Particles of each of ``num`` events. Raises MachineError, and BadTables if a count is negative."""
    counts = tables.counts.read(first, num).astype(np.int64)  # larger unsigned counts become negative
    if num and counts.min() < 0:
        row = int(np.argmax(counts < 0))
        raise BadTables(
            f"dataset {tables.counts.name!r}, row {first + row}: {counts[row]} particles; expected 0 or more",
            tables.counts.rows,
        )
    return counts


def _size_bytes(descriptor: int, path: Path) -> int:
    with hdf5_errors("its size can't be determined", path):
        return os.fstat(descriptor).st_size


@contextmanager
def hdf5_errors(what: str, path: str | os.PathLike[str] = "HDF5") -> Iterator[None]:
    """Errors of HDF5 and h5py, turned into MachineError or BadTables (the file)."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        number = getattr(error, "errno", None) or _errno_in(str(error))
        raise_if_machine(OSError(number, os.strerror(number)) if number else error, path)
        raise BadTables(f"{what}: {one_line(error)}") from None


def _errno_in(text: str) -> int:
    """Errno in a message of HDF5, which gives the kernel's error in its text only."""
    if _NO_MEMORY.search(text):
        return errno.ENOMEM
    found = re.search(r"errno = (\d+)", text)
    return int(found[1]) if found else 0


def _open(file: h5py.File, name: str, kinds: str, num_dimensions: int) -> Table:
    with hdf5_errors(f"dataset {name!r} can't be opened"):
        link = file.get(name, getlink=True)
        if link is None:
            there = ", ".join(repr(other) for other in list(file)[:20]) or "none"
            raise BadTables(f"dataset {name!r} is missing; the file has {there}")
        if not isinstance(link, h5py.HardLink):
            raise BadTables(f"{name!r} is a link to elsewhere; expected a dataset in this file")
        opened = file.get(name)
        if not isinstance(opened, h5py.Dataset):
            raise BadTables(f"{name!r} is no dataset")
        properties = opened.id.get_create_plist()
        if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
            raise BadTables(f"dataset {name!r} keeps its numbers in other files; expected them in this one")
        dtype, kind = opened.dtype, opened.id.get_type()
        if dtype.kind not in kinds or not any(kind.equal(standard) for standard in _STANDARD_TYPES):
            expected = "float32 or float64" if kinds == "f" else "integers"
            raise BadTables(f"dataset {name!r} has numbers of type {dtype}; expected {expected}")
        if opened.shape is None or len(opened.shape) != num_dimensions:
            raise BadTables(f"dataset {name!r} has shape {opened.shape}; expected {num_dimensions} dimensions")
        shape, dataset = tuple(opened.shape), opened.id
        if properties.get_layout() == h5py.h5d.CHUNKED:
            chunk_bytes = dtype.itemsize * int(np.prod([int(n) for n in properties.get_chunk()]))
            if _CACHE_BYTES < 2 * chunk_bytes <= MOST_CACHE_BYTES:
                # A chunk larger than the cache would be decompressed again for each of its slices.
                access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
                access.set_chunk_cache(521, 2 * chunk_bytes, 0.75)
                dataset = h5py.h5d.open(file.id, name.encode(), access)
    return Table(name, dataset, shape, dtype.newbyteorder("="))


def _check_widths(tables: Mapping[str, Table], workload: EventSchema, rows: int) -> None:
    """Raise BadTables if the lists, by file column, have other numbers than expected: one message for all."""
    assert workload.tables is not None
    num_ids = len(workload.tables.ids)
    problem = fields_problem(workload, {name: table.shape[1] - num_ids for name, table in tables.items()})
    if problem:
        raise BadTables(f"behind the {num_ids} ids, {problem}", rows)
