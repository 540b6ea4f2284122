"""Files of every kind, detected from their content: their row groups, and their rows."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from common.config import StreamConfig
from common.errors import BadInputError, MachineError, OwnFaults, one_line, raise_if_machine
from common.files.local import BadFileError, FileKind, file_kind
from common.files.parquet.footer import read_parquet_footer
from common.files.parquet.reader import ParquetReader
from common.files.rows import BadRowsError, Beat, RaggedRows, Reader, first_invalid
from common.memory import asked_for_too_much, too_much
from common.messages import Part
from common.plan import Footer, SlotCapacity, StagedFile, plan_block
from common.schema import EventSchema, no_tables
from common.where import Bounds

_KNOWN_FILES = 1024


def read_footer(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """Row groups of the file. Raises BadFileError that names the file's fault, MachineError."""
    for _ in range(2):  # a momentary shortage of memory is no fault of the file
        try:
            if _kind_of(path) == "HDF5":
                from common.files.hdf5 import read_hdf5_footer  # h5py: most runs never need it

                return read_hdf5_footer(path, workload, stream, capacity)
            return read_parquet_footer(path, workload, stream, capacity)
        except MachineError as error:
            if error.number != errno.ENOMEM or not asked_for_too_much():
                raise
    raise BadFileError(f"it needs {too_much()} to inspect")


def start_arrow() -> None:
    """Start the thread in which Arrow reads files; call it before a limit of memory, which may refuse its stack."""
    with os.fdopen(os.memfd_create("icestream-first-file"), "w+b") as file:
        pq.write_table(pa.table({"x": [0]}), file)
        file.flush()
        for _ in pq.ParquetFile(f"/proc/self/fd/{file.fileno()}").iter_batches(use_threads=False):
            pass


def _kind_of(path: Path) -> FileKind:
    """Return the kind of the file. Raises BadFileError, MachineError."""
    try:
        return file_kind(path)
    except BadInputError as error:
        raise BadFileError(str(error)) from None
    except (OSError, MemoryError) as error:
        raise_if_machine(error, path)
        raise BadFileError(f"unreadable: {one_line(error)}") from None


class ContentReader:
    """Reader of files of every kind, also mixed in one unit (see Reader)."""

    def __init__(self, workload: EventSchema) -> None:
        self._workload = workload
        self._readers: dict[FileKind, Reader] = {"Parquet": ParquetReader(workload)}
        self._known_kind = lru_cache(maxsize=_KNOWN_FILES)(_kind_of)
        self._own_faults = OwnFaults()

    def read(self, parts: Sequence[Part], beat: Beat = lambda: None, *, large_above: int = 1 << 62) -> list[RaggedRows]:
        """The rows of the parts: see Reader."""
        try:
            pieces: list[RaggedRows] = []
            for kind, grouped in itertools.groupby(parts, self._kind):
                of_kind = list(grouped)
                pieces += self._reader(kind, of_kind[0].name).read(of_kind, beat, large_above=large_above)
        except MachineError as error:
            local = next((part for part in parts if part.path == error.path and not part.remote), None)
            if local and self._own_faults.is_own(Path(local.path), error.number):
                raise BadRowsError(f"{local.name}: {os.strerror(error.number)}") from None
            raise
        for path in {part.path for part in parts if part.path and not part.remote}:
            self._own_faults.worked(Path(path))
        return pieces

    def bounds(self, part: Part) -> Bounds:
        """Bounds of fields in the row group of a part: see Reader."""
        with suppress(BadRowsError, MachineError):  # read() reports them
            return self._reader(self._kind(part), part.name).bounds(part) if part.path else {}
        return {}

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()

    def _kind(self, part: Part) -> FileKind:
        if not part.path:  # the file is gone: each reader reports it
            return "Parquet"
        try:
            return self._known_kind(Path(part.path))
        except BadFileError as error:
            raise BadRowsError(f"{part.name}: {error}") from None

    def _reader(self, kind: FileKind, name: str) -> Reader:
        if kind not in self._readers:
            if self._workload.tables is None:
                raise BadRowsError(f"{name}: {no_tables(self._workload)}")
            from common.files.hdf5 import Hdf5Reader  # h5py: most decoders never need it

            self._readers[kind] = Hdf5Reader(self._workload)
        return self._readers[kind]


def plan_file(path: Path, workload: EventSchema, stream: StreamConfig, *, name: str = "") -> tuple[Footer, list[Part]]:
    """Footer and parts of a file, which errors name ``name`` (by default its path).

    Raises BadInputError if the file can't be planned; its text doesn't name the file.
    """
    capacity = SlotCapacity(workload, stream)
    footer = read_footer(path, workload, stream, capacity)
    staged = StagedFile(0, str(path), footer, remote=name)
    units = plan_block(0, 0, 0, [staged], capacity=capacity, stream=stream, seed=0)
    return footer, [part for unit in units for part in unit.parts]


def rows_of(parts: Iterable[Part], workload: EventSchema) -> Generator[RaggedRows]:
    """Rows of the parts, a part at a time (see Reader). Raises BadInputError, which names the file; an invalid event is
    an error, too."""
    with closing(ContentReader(workload)) as reader:
        for part in parts:
            row = part.file_row + part.first_row
            try:
                pieces = reader.read([part])
            except BadRowsError as error:
                raise BadInputError(str(error)) from None
            for rows in pieces:
                if rows.invalid:
                    raise BadInputError(first_invalid(rows, part.name, row))
                row += len(rows.counts)
                yield rows
