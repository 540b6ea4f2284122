"""Which files of an outlier folder are merged into new shards, and which are removed. Pure.

The rule that makes a kill at any instant harmless: an event belongs to its unit, and a unit's events are those of its
unit file, if there is one; else those of the shard of the highest generation that names the unit. A decoder's file is
never older than a shard (it is removed once it is merged, and a later one was decoded later), and each shard that is
written is of a new generation. So a new shard changes nothing by appearing, and what it supersedes may go afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_SMALL = 0.5
"""A shard below this part of the wanted size is merged again with what is new."""


class UnitName(NamedTuple):
    """A unit among those of all plans that a run has had."""

    k: int
    plan: str = ""
    """Of its plan hash and inventory digest; empty: written before files were named by them."""


@dataclass(frozen=True)
class UnitFile:
    """unit-<k>-<plan>.parquet, as a decoder wrote it."""

    unit: UnitName
    path: Path
    size_bytes: int
    digest: str | None = None
    """Of its bytes; None if no shard names its unit, so that nobody needs to know."""


@dataclass(frozen=True)
class MergedUnit:
    """A unit in a shard."""

    unit: UnitName
    events: int
    digest: str
    """Of the unit file that it was merged from."""


@dataclass(frozen=True)
class Shard:
    """One shard, its units in order, as are its rows."""

    path: Path
    size_bytes: int
    generation: int
    units: tuple[MergedUnit, ...]


@dataclass(frozen=True)
class EventSource:
    """Where the events of a unit are taken from."""

    unit: UnitName
    file: UnitFile | Shard


@dataclass(frozen=True)
class Merge:
    """What is to be done."""

    generation: int
    """Of the new shards."""
    sources: tuple[EventSource, ...]
    """In order of units; empty: nothing is written."""
    rewritten: tuple[Shard, ...]
    """Shards among the sources: removed once all new shards are there."""
    obsolete_shards: tuple[Shard, ...]
    """All that they hold is in newer shards."""
    merged_files: tuple[UnitFile, ...]
    """Unit files whose very bytes were merged before."""

    @property
    def unit_files(self) -> list[UnitFile]:
        """Unit files among the sources."""
        return [source.file for source in self.sources if isinstance(source.file, UnitFile)]


def newest_shards(shards: Iterable[Shard]) -> dict[UnitName, Shard]:
    """Unit -> the shard that tells its events, if no unit file does."""
    return {one.unit: shard for shard in sorted(shards, key=lambda shard: shard.generation) for one in shard.units}


def plan_merge(files: Sequence[UnitFile], shards: Sequence[Shard], shard_bytes: int) -> Merge:
    """Merge all new unit files, and shards that hold what was decoded anew, that are superseded in part, or small."""
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
