"""Merge of an outlier folder's unit files into shards. Killed at any instant and run again, it loses no event and
keeps none twice: see merge.py for the rule. Memory is bounded by a batch of rows, disk by one shard more than before
(and by the rewritten shards)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from common.errors import BadInputError
from common.file_lock import RUN_PARTS, RunLock, locked
from common.run_dir import CONFIG_FILE, SHARDS_FOLDER
from common.slow_progress import SlowProgress
from icestream.commands.outliers.merge import EventSource, Merge, MergedUnit, Shard, UnitFile, plan_merge
from icestream.commands.outliers.schema import common_schema
from icestream.commands.outliers.shards import (
    ShardReader,
    ShardWriter,
    digest_of,
    read_batches,
    read_schema,
    remove_parts,
    scan,
    write_shard,
)

_LOCK = "compaction.lock"


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction, or of its dry run."""

    merge: Merge
    bytes_read: int
    events: int = 0
    shards_written: int = 0
    bytes_written: int = 0
    files_removed: int = 0


def compact(folder: Path, *, shard_bytes: int, keep: bool = False, dry_run: bool = False) -> Compacted:
    """Merge new files into shards of at least ``shard_bytes`` (the last may be smaller), then remove the merged ones.

    ``keep``: unit files stay. ``dry_run``: nothing is changed. Raises BadInputError if the folder's run is active, or
    another compaction; if a file is no outlier file; if two files have incompatible types.
    """
    with _hold(folder):
        files, shards = scan(folder)
        merge = plan_merge(files, shards, shard_bytes)
        bytes_read = sum(file.size_bytes for file in merge.unit_files) + sum(s.size_bytes for s in merge.rewritten)
        if dry_run:
            return Compacted(merge, bytes_read)
        remove_parts(folder)
        removed = _remove(merge.obsolete_shards) + (0 if keep else _remove(merge.merged_files))
        events = shards_written = bytes_written = 0
        for path, units, merged in _write_shards(folder, merge, shard_bytes):
            shards_written += 1
            bytes_written += path.stat().st_size
            events += sum(unit.events for unit in units)
            removed += 0 if keep else _remove(merged)  # at once: the disk may have no space for two copies
        removed += _remove(merge.rewritten)
        return Compacted(merge, bytes_read, events, shards_written, bytes_written, removed)


def _write_shards(
    folder: Path, merge: Merge, shard_bytes: int
) -> Iterator[tuple[Path, list[MergedUnit], list[UnitFile]]]:
    """New shards, each yielded once it is on disk: its path, its units, and the unit files merged into it."""
    schema = _schema(dict.fromkeys(source.file.path for source in merge.sources))
    readers = {shard.path: ShardReader(shard) for shard in merge.rewritten}
    waiting = deque(merge.sources)
    with SlowProgress("units merged", len(waiting)) as progress:
        while waiting:
            merged: list[UnitFile] = []
            with write_shard(folder, merge.generation, schema) as writer:
                while waiting and (not writer.units or writer.size_bytes < shard_bytes):
                    source = waiting.popleft()
                    _copy_unit(source, writer, readers)
                    if isinstance(source.file, UnitFile):
                        merged.append(source.file)
                    progress.advance(1)
            yield folder / writer.name, writer.units, merged


def _schema(paths: Collection[Path]) -> pa.Schema:
    schemas = []
    with SlowProgress("columns of files read", len(paths)) as progress:
        for path in paths:
            schemas.append((str(path), read_schema(path)))
            progress.advance(1)
    return common_schema(schemas)


def _copy_unit(source: EventSource, writer: ShardWriter, readers: dict[Path, ShardReader]) -> None:
    if isinstance(source.file, UnitFile):
        writer.add_unit(source.unit, read_batches(source.file.path), digest_of(source.file.path))
    else:
        unit, batches = readers[source.file.path].unit(source.unit)
        writer.add_unit(source.unit, batches, unit.digest)


def _remove(files: Sequence[UnitFile | Shard]) -> int:
    for file in files:
        file.path.unlink()
    return len(files)


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Exclude other compactions and, if the folder belongs to a run, its processes."""
    with contextlib.ExitStack() as held:
        if not held.enter_context(locked(folder / _LOCK, lambda: False)):
            raise BadInputError(f"{folder}: another compaction is at work there; wait for its end")
        of_fetcher = folder.parent
        run_dir = of_fetcher.parents[1] if of_fetcher.parent.name == SHARDS_FOLDER else of_fetcher
        if (run_dir / CONFIG_FILE).exists():
            for part in RUN_PARTS:
                held.enter_context(RunLock(of_fetcher if part == "fetcher" else run_dir, part, "icestream outliers"))
        yield
