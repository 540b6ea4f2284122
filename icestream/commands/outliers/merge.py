"""Plan of a merge: files of an outlier folder to merge into new shards, and files to remove. Pure.

The rule that makes a kill at any instant harmless: an event belongs to its unit, and a unit's events are those of its
unit file, if there is one; else those of the shard of the highest generation that names the unit. A decoder's file is
never older than a shard (it is removed once it is merged, and a later one was decoded later), and each shard that is
written is of a new generation. So a new shard changes nothing by itself, and superseded files may be removed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_SMALL = 0.5
"""Part of the wanted size below which a shard is merged again with new files."""


class UnitName(NamedTuple):
    """Name of a unit, unique among all plans of a run."""

    k: int
    plan: str = ""
    """Digest of its plan hash and inventory digest; empty: written before files were named by them."""


@dataclass(frozen=True)
class UnitFile:
    """File unit-<k>-<plan>.parquet, as written by a decoder."""

    unit: UnitName
    path: Path
    size_bytes: int
    digest: str | None = None
    """Digest of its bytes; None if no shard names its unit, since it is not needed then."""


@dataclass(frozen=True)
class MergedUnit:
    """Unit in a shard."""

    unit: UnitName
    events: int
    digest: str
    """Digest of the unit file that it was merged from."""


@dataclass(frozen=True)
class Shard:
    """Shard, with its units in the order of its rows."""

    path: Path
    size_bytes: int
    generation: int
    units: tuple[MergedUnit, ...]


@dataclass(frozen=True)
class EventSource:
    """Source of a unit's events."""

    unit: UnitName
    file: UnitFile | Shard


@dataclass(frozen=True)
class Merge:
    """Planned changes of an outlier folder."""

    generation: int
    """Generation of the new shards."""
    sources: tuple[EventSource, ...]
    """Sources in order of units; empty: nothing is written."""
    rewritten: tuple[Shard, ...]
    """Shards among the sources: removed once all new shards are written."""
    obsolete_shards: tuple[Shard, ...]
    """Shards with no events that are not in newer shards."""
    merged_files: tuple[UnitFile, ...]
    """Unit files with exactly the bytes merged before."""

    @property
    def unit_files(self) -> list[UnitFile]:
        """Unit files among the sources."""
        return [source.file for source in self.sources if isinstance(source.file, UnitFile)]


def newest_shards(shards: Iterable[Shard]) -> dict[UnitName, Shard]:
    """Shard with the events of each unit, for units without unit file."""
    return {one.unit: shard for shard in sorted(shards, key=lambda shard: shard.generation) for one in shard.units}


def plan_merge(files: Sequence[UnitFile], shards: Sequence[Shard], shard_bytes: int) -> Merge:
    """Merge of all new unit files, and of shards with units decoded again, superseded in part, or small."""
    newest = newest_shards(shards)
    digests = {(shard.path, one.unit): one.digest for shard in shards for one in shard.units}
    merged = [f for f in files if f.unit in newest and digests[newest[f.unit].path, f.unit] == f.digest]
    merged_units = {file.unit for file in merged}
    fresh = {file.unit: file for file in files if file.unit not in merged_units}
    live = {shard.path: [one.unit for one in shard.units if newest[one.unit] is shard] for shard in shards}
    kept = [shard for shard in shards if live[shard.path]]
    stale = [
        shard
        for shard in kept
        if len(live[shard.path]) < len(shard.units) or any(unit in fresh for unit in live[shard.path])
    ]
    small = [shard for shard in kept if shard not in stale and shard.size_bytes < _SMALL * shard_bytes]
    if not fresh and not stale and len(small) < 2:
        small = []
    rewritten = sorted([*stale, *small], key=lambda shard: shard.path)
    sources: list[EventSource] = [EventSource(unit, file) for unit, file in fresh.items()]
    sources += [EventSource(unit, shard) for shard in rewritten for unit in live[shard.path] if unit not in fresh]
    return Merge(
        generation=max((shard.generation for shard in shards), default=0) + 1,
        sources=tuple(sorted(sources, key=lambda source: source.unit)),
        rewritten=tuple(rewritten),
        obsolete_shards=tuple(shard for shard in shards if not live[shard.path]),
        merged_files=tuple(merged),
    )
