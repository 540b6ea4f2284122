"""Generated bundles as Parquet files in the production schema, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq

from common.atomic_file import part_of_one_writer
from common.errors import BadInputError
from common.files.layout import schema_of, to_table, writer_options
from common.files.rows import RaggedRows
from workloads.muons.columns import MUONS
from workloads.muons.generation.primaries import Primaries
from workloads.muons.generation.stream import GeneratedEvents

ROW_GROUP_EVENTS = 32_768
ROW_GROUP_MUONS = 1 << 20
"""Limits of a row group, which is held in memory until written; it is closed at the first one reached."""
METADATA_KEY = "icestream.generated"
"""Key in the Parquet footer for the provenance of the events, as JSON."""
_OWN_FILE = re.compile(r"bundles_\d{7,}\.parquet")


class BundleWriter:
    """Context manager. ``out`` is a file (*.parquet), or a directory for files of ``rows_per_file`` events.

    A file gets its name when it is complete, and only without an error. Raises BadInputError if ``out`` can't be used.
    """

    def __init__(
        self, out: Path, *, rows_per_file: int = 1_000_000, force: bool = False, provenance: Mapping[str, Any]
    ) -> None:
        self._out = out
        self._is_file = out.suffix == ".parquet" and not out.is_dir()
        self._rows_per_file = None if self._is_file else rows_per_file
        self._replaced = _check(out, self._is_file, force)
        schema = schema_of(MUONS)
        self._options = writer_options(schema, "zstd")
        self._schema = schema.with_metadata({METADATA_KEY: json.dumps(dict(provenance))})
        self._writer: pq.ParquetWriter | None = None
        self._part = out
        self._rows_in_file = 0
        self._group: list[RaggedRows] = []
        self._events_in_group = self._muons_in_group = 0
        self.paths: list[Path] = []
        """Complete files."""

    def __enter__(self) -> Self:
        (self._out.parent if self._is_file else self._out).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._writer is None and not self.paths:
                    self._open()  # without any event, write an empty file
                self._finish()
                for needless in self._replaced - set(self.paths):
                    needless.unlink(missing_ok=True)
        finally:
            if self._writer is not None:
                with contextlib.suppress(OSError):  # closing writes a footer, which fails again on a full disk
                    self._writer.close()
                self._part.unlink(missing_ok=True)

    def write(self, generated: GeneratedEvents) -> None:
        """Append events."""
        first = 0
        while first < len(generated.counts_E):
            room = len(generated.counts_E) if self._rows_per_file is None else self._rows_per_file - self._rows_in_file
            end = min(first + room, len(generated.counts_E))
            self._add(ragged_rows(generated, first, end))
            first = end
            if self._rows_in_file == self._rows_per_file:
                self._finish()

    def _add(self, rows: RaggedRows) -> None:
        if self._writer is None:
            self._open()
        num_muons = len(rows.particle_columns["muons"])
        if self._group and self._muons_in_group + num_muons > ROW_GROUP_MUONS:
            self._write_group()
        self._group.append(rows)
        self._rows_in_file += len(rows.counts)
        self._events_in_group += len(rows.counts)
        self._muons_in_group += num_muons
        if self._events_in_group >= ROW_GROUP_EVENTS:
            self._write_group()

    def _write_group(self) -> None:
        assert self._writer is not None
        table = to_table(self._group, MUONS).cast(self._schema)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._group, self._events_in_group, self._muons_in_group = [], 0, 0

    def _open(self) -> None:
        path = self._path()
        self._part = part_of_one_writer(path)
        self._writer = pq.ParquetWriter(self._part, self._schema, **self._options)
        self._rows_in_file = 0

    def _finish(self) -> None:
        """Close the open file, if any, and give it its name."""
        if self._writer is None:
            return
        if self._group:
            self._write_group()
        self._writer.close()
        self._writer = None
        self._part.replace(self._path())
        self.paths.append(self._path())
        self._rows_in_file = 0

    def _path(self) -> Path:
        return self._out if self._is_file else self._out / f"bundles_{len(self.paths):07d}.parquet"


def _check(out: Path, is_file: bool, force: bool) -> set[Path]:
    """Existing files that will be replaced. Raises BadInputError if ``out`` can't be used."""
    if is_file:
        if out.exists() and not force:
            raise BadInputError(f"{out} exists: choose another name, or overwrite it with --force")
        return set()
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file without the suffix .parquet; name a directory, or a *.parquet file")
    there = sorted(out.iterdir()) if out.is_dir() else []
    if there and not force:
        raise BadInputError(f"{out} is not empty: choose another directory, or overwrite its bundles with --force")
    foreign = [path.name for path in there if not _OWN_FILE.fullmatch(path.name)]
    if foreign:
        raise BadInputError(f"{out} holds more than bundles, such as {foreign[0]}: choose another directory")
    return set(there)


def ragged_rows(generated: GeneratedEvents, first: int, end: int) -> RaggedRows:
    """Rows ``first`` to ``end`` of generated events, for a table."""
    rows: Primaries = generated.primaries.rows(first, end)
    begin = int(generated.counts_E[:first].sum())
    counts_E = generated.counts_E[first:end]
    return RaggedRows(
        counts=counts_E,
        event_columns={"primary": rows.primary_E4, "primary_id": rows.ids_E2},
        particle_columns={"muons": generated.muons_P3[begin : begin + int(counts_E.sum())]},
        large=np.empty(0, np.int64),
        large_events=None,
    )
