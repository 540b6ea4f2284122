"""Files of an outlier folder: unit files written by decoders, and shards with the names of their units as metadata."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import sync_folder
from common.errors import BadInputError
from common.slow_progress import SlowProgress
from icestream.commands.outliers.merge import MergedUnit, Shard, UnitFile, UnitName, newest_shards

_MANIFEST = b"icestream.outliers"
_UNIT = re.compile(r"unit-(\d+)(?:-([0-9a-f]+))?\.parquet")
_SHARD = re.compile(r"shard-\d+-\d+(?:-[0-9a-f]+)?-g\d+\.parquet")
_BATCH_BYTES = 4 << 20
"""Approximate memory in use, and size of a row group: one must fit a slot to be an input again."""
_MAX_BATCH_ROWS = 65_536


def scan(folder: Path) -> tuple[list[UnitFile], list[Shard]]:
    """Unit files and shards of a folder. Raises BadInputError naming a file that is neither despite its name."""
    paths = sorted(folder.iterdir())
    shards = [_read_shard(path) for path in paths if _SHARD.fullmatch(path.name)]
    known = newest_shards(shards)
    files = []
    with SlowProgress("files scanned", len(paths)) as progress:
        for path in paths:
            if match := _UNIT.fullmatch(path.name):
                unit = UnitName(int(match[1]), match[2] or "")
                files.append(UnitFile(unit, path, path.stat().st_size, digest_of(path) if unit in known else None))
            progress.advance(1)
    return files, shards


def digest_of(path: Path) -> str:
    """Digest of the file's bytes: 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_schema(path: Path) -> pa.Schema:
    """Schema of the file."""
    with _open(path) as file:
        return file.schema_arrow


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Rows in order, in batches of about 4 MiB."""
    with _open(path) as file:
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            if group.num_rows:
                rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)))
                yield from file.iter_batches(rows, [index], use_threads=False)


class ShardReader:
    """Reader of a shard's units, one after the other, in their order in the file."""

    def __init__(self, shard: Shard) -> None:
        self._units = iter(shard.units)
        self._batches = read_batches(shard.path)
        self._batch: pa.RecordBatch | None = None

    def unit(self, wanted: UnitName) -> tuple[MergedUnit, Iterator[pa.RecordBatch]]:
        """Wanted unit and its rows. It must come after the last one requested, and all its rows must be read."""
        for one in self._units:
            if one.unit == wanted:
                return one, self._take(one.events)
            for _ in self._take(one.events):
                pass
        raise ValueError(f"unit {wanted} is not in the rest of the shard")

    def _take(self, rows: int) -> Iterator[pa.RecordBatch]:
        while rows:
            batch = self._batch if self._batch is not None else next(self._batches)
            yield batch.slice(0, rows)
            self._batch = batch.slice(rows) if rows < batch.num_rows else None
            rows -= min(rows, batch.num_rows)


class ShardWriter:
    """Writer of one new shard: see write_shard()."""

    def __init__(self, file: BinaryIO, generation: int, schema: pa.Schema) -> None:
        self.units: list[MergedUnit] = []
        """Units written so far, in order."""
        self._file = file
        self._generation = generation
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, use_dictionary=["source_file"])
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Approximate size so far: unwritten rows count with their size in memory."""
        return self._file.tell() + self._pending_bytes

    @property
    def name(self) -> str:
        """Name of the shard's file: generations never repeat, and no two shards of one begin with the same unit."""
        (first, plan), (last, _) = self.units[0].unit, self.units[-1].unit
        return f"shard-{first:010d}-{last:010d}{'-' * bool(plan)}{plan}-g{self._generation}.parquet"

    def add_unit(self, unit: UnitName, batches: Iterator[pa.RecordBatch], digest: str) -> None:
        """Append a unit after all lower ones."""
        events = 0
        for batch in batches:
            events += batch.num_rows
            self._pending.append(_conform(batch, self._schema))
            self._pending_bytes += self._pending[-1].nbytes
            if self._pending_bytes >= _BATCH_BYTES:
                self._flush()
        self.units.append(MergedUnit(unit, events, digest))

    def finish(self) -> None:
        """Write the remaining rows, and the names of the units."""
        self._flush()
        manifest = {
            "generation": self._generation,
            "units": [(*one.unit, one.events, one.digest) for one in self.units],
        }
        self._writer.add_key_value_metadata({_MANIFEST: json.dumps(manifest)})
        self._writer.close()

    def abandon(self) -> None:
        """Close the unfinished file."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._pending, self._pending_bytes = [], 0


@contextlib.contextmanager
def write_shard(folder: Path, generation: int, schema: pa.Schema) -> Iterator[ShardWriter]:
    """Writer of a new shard, which is on disk, complete and under its name, after the block; absent if that fails."""
    part = folder / f"shard-g{generation}.part"
    part.unlink(missing_ok=True)
    with part.open("xb") as file:
        writer = ShardWriter(file, generation, schema)
        try:
            yield writer
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            writer.abandon()
            part.unlink()
            raise
    part.replace(folder / writer.name)  # known only now, so that atomic_file.replacing() can't serve
    sync_folder(folder)


def remove_parts(folder: Path) -> None:
    """Delete half-written files of a killed compaction."""
    for part in folder.glob("shard-*.part"):
        part.unlink()


def _read_shard(path: Path) -> Shard:
    with _open(path) as file:
        raw = (file.metadata.metadata or {}).get(_MANIFEST)
        rows = file.metadata.num_rows
    if raw is None:
        raise BadInputError(f"{path}: named like a shard, but no compaction wrote it; move it to another folder")
    manifest = json.loads(raw)
    # Shards of an older icestream name no plan: k, events, digest.
    units = tuple(MergedUnit(UnitName(*unit), events, digest) for *unit, events, digest in manifest["units"])
    if sum(unit.events for unit in units) != rows:
        raise BadInputError(f"{path}: its {rows} rows are not those of the units that it names; restore the file")
    return Shard(path, path.stat().st_size, manifest["generation"], units)


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInputError(f"{path}: truncated, or not Parquet ({reason}); move it to another folder") from None


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: Sequence[pa.Array] = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)
