"""Command `icestream outliers`: merge of a run's outlier files, one for each unit, into large ones, shards.

A shard names the unit files whose events it holds, and is complete on disk before these are removed. So a kill at any
instant is harmless: a unit file that a shard names is removed by the next call. That also holds for a unit that a
resumed run decoded again: the name has digests of plan and files, and decoding is a pure function of these.
Memory is bounded by a batch of rows, disk by one shard more than before.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import replacing
from common.config import MIB
from common.errors import BadInputError
from common.locks import RUN_PARTS, RunLock, locked
from common.paths import CONFIG_FILE, SHARDS_FOLDER
from common.slow_progress import SlowProgress
from common.status import OUTLIER_FOLDER
from common.text import shown

EXAMPLES = """\b
Examples:
  icestream outliers compact runs/mine                     # its outliers/, or those of all of its stream.shards
  icestream outliers compact runs/mine --shard-mib 1024
"""
_MANIFEST = b"icestream.outliers"
"""Key in a shard's footer of the names of its unit files, in the order of its rows."""
_UNIT = re.compile(r"unit-\d+(-[0-9a-f]+)?\.parquet")
_BATCH_BYTES = 4 << 20
"""Approximate memory in use, and size of a row group: one must fit a slot to be an input again."""
_MAX_BATCH_ROWS = 65_536


@click.group(name="outliers", epilog=EXAMPLES)
def outliers() -> None:
    """Process a run's outliers: events with more than max_particles_per_event particles."""


@outliers.command(name="compact", epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--shard-mib",
    type=click.FloatRange(min=0, min_open=True),
    default=256.0,
    show_default=True,
    help="Size of a shard.",
)
def compact_command(folder: Path, shard_mib: float) -> None:
    """Merge the small Parquet files in DIR (a run's outliers/, or the run directory), one for each unit, into shards.

    The directory of a run with several stream.shards stands for the outliers/ of each of them. Merged files have the
    columns of the small ones and can be used as input like them; a file without a column of another one has nulls
    there. The run must not be active. After a kill, run the same command again.
    """
    if not folder.is_dir():
        raise BadInputError(f"{folder}: no such directory; name a run's {OUTLIER_FOLDER}/")
    of_shards = sorted((folder / SHARDS_FOLDER).glob(f"[0-9][0-9][0-9]/{OUTLIER_FOLDER}"))
    found = [inner for inner in (folder / OUTLIER_FOLDER, *of_shards) if inner.is_dir()]
    for place in found or [folder]:
        done = compact(place.absolute(), shard_bytes=int(shard_mib * MIB))
        written = f"{done.shards_written:,} shards, {done.bytes_written / MIB:,.1f} MiB, {done.events:,} events"
        text = "nothing to merge"
        if done.unit_files:
            text = f"{done.unit_files:,} unit files, {done.bytes_read / MIB:,.1f} MiB, merged into {written}"
        removed = f"; {done.files_removed:,} files removed" if done.files_removed else ""
        click.echo(f"{place.absolute()}: {text}{removed}")


@dataclass
class Compacted:
    """Result of a compaction."""

    unit_files: int = 0
    bytes_read: int = 0
    files_removed: int = 0
    """Unit files, including those that a killed compaction left behind."""
    shards_written: int = 0
    bytes_written: int = 0
    events: int = 0


def compact(folder: Path, *, shard_bytes: int) -> Compacted:
    """Merge unit files into shards of at least ``shard_bytes`` (the last may be smaller), then remove the merged ones.

    Raises BadInputError if the folder's run is active, or another compaction; if a file is no outlier file; if two
    files have incompatible types.
    """
    with _hold(folder):
        merged_before = {name for path in folder.glob("shard-[0-9]*.parquet") for name in _names_in(path)}
        unit_files = sorted(path for path in folder.iterdir() if _UNIT.fullmatch(path.name))
        leftover = [path for path in unit_files if path.name in merged_before]
        waiting = deque(path for path in unit_files if path.name not in merged_before)
        done = Compacted(len(waiting), sum(path.stat().st_size for path in waiting), len(unit_files))
        for path in [*leftover, *folder.glob("shard-*.part")]:  # of a killed compaction
            path.unlink()
        schema = common_schema(waiting)
        with SlowProgress("units merged", len(waiting)) as progress:
            while waiting:
                shard = folder / waiting[0].name.replace("unit", "shard", 1)
                merged, events = _write_shard(shard, waiting, schema, shard_bytes, progress)
                for path in merged:  # at once: the disk may have no space for two copies
                    path.unlink()
                done.shards_written += 1
                done.bytes_written += shard.stat().st_size
                done.events += events
        return done


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Exclude other compactions and, if the folder belongs to a run, its processes."""
    with contextlib.ExitStack() as held:
        if not held.enter_context(locked(folder / "compaction.lock", lambda: False)):
            raise BadInputError(f"{folder}: another compaction is at work there; wait for its end")
        of_fetcher = folder.parent
        run_dir = of_fetcher.parents[1] if of_fetcher.parent.name == SHARDS_FOLDER else of_fetcher
        if (run_dir / CONFIG_FILE).exists():
            for part in RUN_PARTS:
                held.enter_context(RunLock(of_fetcher if part == "fetcher" else run_dir, part, "icestream outliers"))
        yield


# ------------------------------------------------------------------ files


def _names_in(path: Path) -> list[str]:
    """Return the names of the unit files that are merged in a shard."""
    with _open(path) as file:
        raw = (file.metadata.metadata or {}).get(_MANIFEST)
    if raw is None:
        raise BadInputError(f"{path}: named like a shard, but no compaction wrote it; move it to another folder")
    names: list[str] = json.loads(raw)
    return names


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInputError(f"{path}: truncated, or not Parquet ({reason}); move it to another folder") from None


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Read the rows in order, in batches of about 4 MiB."""
    with _open(path) as file:
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            if group.num_rows:
                rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)))
                yield from file.iter_batches(rows, [index], use_threads=False)


def _write_shard(
    shard: Path, waiting: deque[Path], schema: pa.Schema, shard_bytes: int, progress: SlowProgress
) -> tuple[list[Path], int]:
    """Write a shard of the first unit files that wait; return these, taken from ``waiting``, and the number of events.

    They are so many that the shard has at least ``shard_bytes``: unwritten rows count with their size in memory.
    """
    merged: list[Path] = []
    pending: list[pa.RecordBatch] = []
    events = pending_bytes = 0
    with (
        replacing(shard, durable=True) as part,
        pq.ParquetWriter(part, schema, use_dictionary=["source_file"]) as writer,
    ):
        while waiting and (not merged or part.stat().st_size + pending_bytes < shard_bytes):
            merged.append(waiting.popleft())
            for batch in read_batches(merged[-1]):
                pending.append(_conform(batch, schema, merged[-1]))
                pending_bytes += pending[-1].nbytes
                events += batch.num_rows
                if pending_bytes >= _BATCH_BYTES:
                    _write_row_group(writer, pending)
                    pending, pending_bytes = [], 0
            progress.advance(1)
        if pending:
            _write_row_group(writer, pending)
        writer.add_key_value_metadata({_MANIFEST: json.dumps([path.name for path in merged])})
    return merged, events


def _write_row_group(writer: pq.ParquetWriter, batches: Sequence[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    writer.write_table(table, row_group_size=table.num_rows)


def _conform(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            columns.append(batch.column(field.name).cast(field.type))  # refuses what would change a value
        except pa.ArrowException as error:
            raise BadInputError(
                f"{path}: column {field.name!r}: no type holds all its values ({shown(str(error))}); move the file to"
                " another folder"
            ) from None
    return pa.record_batch(columns, schema=schema)


def common_schema(paths: Sequence[Path]) -> pa.Schema:
    """Return a schema with the columns of all files, in order of appearance, wide enough for each value.

    Whether a type holds each value exactly is seen by casting. Raises BadInputError naming a file that does not fit the
    others, and its column.
    """
    schema = pa.schema([])
    with SlowProgress("columns of files read", len(paths)) as progress:
        for path in paths:
            with _open(path) as file:
                own = pa.schema([(field.name, _plain(field.type)) for field in file.schema_arrow])
            try:
                schema = pa.unify_schemas([schema, own], promote_options="permissive")
            except pa.ArrowException as error:
                raise BadInputError(
                    f"{path}: no type holds a column of this file and of those before ({shown(str(error))}); move it to"
                    " another folder"
                ) from None
            progress.advance(1)
    return schema


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries and without names of list elements, which depend on the writer."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(_plain(kind.value_type))
    return kind
