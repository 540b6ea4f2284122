"""Folder that the fetchers of all shards share: lists of files, bad files, and records of what each has planned."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import Publishing
from common.plan import SourceFile
from common.planned import planned_name
from services.fetcher.inventory.begun_blocks import BegunBlocks
from services.fetcher.inventory.lister import Expand
from services.fetcher.inventory.own_record import OwnRecord
from services.fetcher.inventory.published import PublishedInventory
from services.fetcher.inventory.ranges import InputRange
from services.fetcher.inventory.shared_bad_files import SharedBadFiles
from services.fetcher.inventory.shared_epochs import SharedEpochs


@dataclass(frozen=True)
class SharedFolder:
    """The folder, as one shard uses it; without one, the run has no shards."""

    folder: Path | None = None
    shard: int = 0
    shards: int = 1
    publishing: Publishing = nullcontext
    """Context of what this shard adds, of several nodes."""

    @property
    def bad_files(self) -> SharedBadFiles | None:
        """Bad files of all shards."""
        return SharedBadFiles(self.folder, self.shard, self.publishing) if self.folder is not None else None

    @property
    def epochs(self) -> SharedEpochs | None:
        """Events that all shards delivered, by epoch."""
        if self.folder is None:
            return None
        return SharedEpochs(self.folder, self.shard, self.shards, self.publishing)

    @property
    def record(self) -> OwnRecord | None:
        """Record of the planned blocks of the shard."""
        return OwnRecord(self.folder / planned_name(self.shard), self.publishing) if self.folder is not None else None

    def begun(self, settings: str) -> BegunBlocks | None:
        """Begun blocks of the shard. ``settings``: the plan hash."""
        if self.folder is None:
            return None
        return BegunBlocks(OwnRecord(self.folder / f"begun-{self.shard:03d}.jsonl", self.publishing), settings)

    def listing(
        self, expand: Callable[[InputRange], list[SourceFile]], *, skips: bool
    ) -> tuple[Expand, Callable[[InputRange], bool]]:
        """Function that lists a range, and whether that is possible yet: the first shard lists for all.

        ``skips``: see PublishedInventory.
        """
        if self.folder is None:
            return expand, lambda one: True
        published = PublishedInventory(self.folder, expand, lists=self.shard == 0, skips=skips)
        return published.expand, published.is_there
