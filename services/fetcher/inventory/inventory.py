"""Frozen inventory of a run, which grows range by range: numbers, sizes and digests of its files."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from common.messages import Source
from common.plan import Blocks, SourceFile
from common.plan_hash import complete_digest, inventory_digest
from services.fetcher.inventory.ledger import CommittedPlace, FrozenRange, Ledger
from services.fetcher.inventory.ranges import InputRange


class Inventory:
    """Ranges in sequence, beginning with those frozen before. ``blocks`` grows with it."""

    def __init__(self, ledger: Ledger, ranges: Sequence[InputRange], blocks: Blocks) -> None:
        self.ranges = ranges
        self.staged_bytes: array[int] = array("q")
        """Disk space of each file once it is staged: 0 for a local one."""
        self.blocks = blocks
        self._ledger = ledger
        self._digests = [""]
        for frozen in ledger.use(ranges):
            self._append(frozen)

    @property
    def num_files(self) -> int:
        """Number of files in the known ranges."""
        return len(self.staged_bytes)

    @property
    def num_known(self) -> int:
        """Number of frozen ranges."""
        return len(self._digests) - 1

    @property
    def complete(self) -> bool:
        """True once all ranges are frozen."""
        return self.num_known == len(self.ranges)

    @property
    def next_range(self) -> InputRange:
        """First range that is not frozen."""
        return self.ranges[self.num_known]

    def freeze(self, files: Sequence[SourceFile], note: str = "") -> None:
        """Fix the files of the next range. ``note``: reason that it has none."""
        self._append(self._ledger.freeze(self.next_range, files, note))

    def source(self, file: int) -> SourceFile:
        """File by its number."""
        return self._ledger.source(file)

    def source_of(self, block: int) -> Source:
        """Source of the data of a known block and all before it."""
        if self.blocks.epoch_of(block):
            return Source(self.num_known, complete_digest(self._digests[-1]))
        ranges = self.blocks.range_of(block) + 1
        return Source(ranges, self._digests[ranges])

    def knows(self, source: Source) -> bool:
        """True if enough ranges are known to decide whether data came from this inventory."""
        return source.ranges <= self.num_known or self.complete

    def has(self, source: Source) -> bool:
        """True if data of that source belong to this inventory."""
        if source.ranges > self.num_known:
            return False
        is_all = source.ranges == len(self.ranges)
        digest = self._digests[source.ranges]
        return source.digest == digest or (is_all and source.digest == complete_digest(digest))

    def place_before(self, block: int) -> CommittedPlace:
        """Epoch and number of ranges completed once all blocks before ``block`` are."""
        if self.blocks.is_known(block):
            return CommittedPlace(self.blocks.epoch_of(block), self.blocks.range_of(block))
        epochs = self.blocks.epoch_of(block) if self.blocks.per_epoch else 0
        return CommittedPlace(max(epochs - 1, 0), self.num_known)

    def _append(self, frozen: FrozenRange) -> None:
        self._digests.append(inventory_digest(self._digests[-1], frozen.digest))
        self.staged_bytes.extend(self._ledger.staged_bytes(frozen))
        self.blocks.append(frozen.num_files)
