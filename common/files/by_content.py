"""Choice of a file's reader by its content."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from common.errors import BadInputError
from common.files.file_kind import FileKind, file_kind
from common.files.parquet.reader import ParquetReader
from common.files.reader import Beat, Reader
from common.files.rows import BadRowsError, RaggedRows
from common.input_errors import MachineError, one_line, raise_if_machine
from common.messages import Part
from common.own_faults import OwnFaults
from common.schema import NO_TABLES, EventSchema

_KNOWN_FILES = 1024


class ContentReader:
    """Reader of files of every kind, also mixed in one unit (see Reader)."""

    def __init__(self, workload: EventSchema) -> None:
        self._workload = workload
        self._readers: dict[FileKind, Reader] = {"Parquet": ParquetReader(workload)}
        self._kinds: OrderedDict[str, FileKind] = OrderedDict()
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

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()

    def _kind(self, part: Part) -> FileKind:
        if not part.path:  # the file is gone: each reader reports it
            return "Parquet"
        if part.path not in self._kinds:
            try:
                self._kinds[part.path] = file_kind(Path(part.path))
            except BadInputError as error:
                raise BadRowsError(f"{part.name}: {error}") from None
            except (OSError, MemoryError) as error:
                raise_if_machine(error, part.path)
                raise BadRowsError(f"{part.name}: {one_line(error)}") from None
            if len(self._kinds) > _KNOWN_FILES:
                self._kinds.popitem(last=False)
        return self._kinds[part.path]

    def _reader(self, kind: FileKind, name: str) -> Reader:
        if kind not in self._readers:
            if self._workload.tables is None:
                raise BadRowsError(f"{name}: {NO_TABLES.format(self._workload.name)}")
            from common.files.hdf5.reader import Hdf5Reader  # h5py: most decoders never need it

            self._readers[kind] = Hdf5Reader(self._workload)
        return self._readers[kind]
