"""Staging plan: files to stage next, complete blocks, files to delete. Pure: the service moves the bytes.

A file behind the cursor that a later epoch needs is kept while there is room: nothing relies on it, and its room goes
to the next block that needs it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.errors import BadInputError
from common.plan import Blocks, StagedFile
from services.fetcher.staging.next_use import NextUse


@dataclass(frozen=True)
class Begun:
    """Steps that complete more blocks, in this order."""

    give_up: list[int]
    """Files to delete, kept for a later block: their room is needed now."""
    stage: list[int]
    """Files to stage, including kept ones: the cache has them, or finds them damaged."""


class StageAhead:
    """Staging of blocks in order, ``blocks_ahead`` beyond the one being delivered, within ``budget_bytes`` of disk.

    ``sizes_bytes``: size of each file in the budget (0: used in place).
    """

    def __init__(
        self,
        blocks: Blocks,
        sizes_bytes: Sequence[int],
        *,
        budget_bytes: int,
        blocks_ahead: int,
        budget: str = "fetcher.disk_budget_gib",
    ) -> None:
        """``budget``: the setting, for the error."""
        self.blocks = blocks
        self.next_to_plan = 0
        """First block that take_block() has not returned."""
        self.out_of_budget = False
        """True if the next block was not begun because the files of earlier blocks fill the budget."""
        self.missing_bytes = 0
        """Bytes by which the budget is too small for that block beside the earlier ones."""
        self._sizes_bytes = sizes_bytes
        self._budget_bytes = budget_bytes
        self._budget = budget
        self._blocks_ahead = blocks_ahead
        self._next_to_begin = 0
        self._needed_by: dict[int, set[int]] = {}  # file -> blocks begun and not evicted
        self._staged: dict[int, StagedFile] = {}
        self._staging: set[int] = set()
        self._kept: dict[int, int] = {}  # file that no begun block needs -> its number in the heap
        self._first_to_go: list[tuple[float, int, int]] = []  # a heap: -next use, -number, file
        self._numbers = itertools.count()
        self._next_use = NextUse(blocks)
        self._bytes_held = self._bytes_kept = 0

    @property
    def bytes_held(self) -> int:
        """Disk space of files: staged, in transfer, and kept for later."""
        return self._bytes_held

    @property
    def bytes_kept(self) -> int:
        """Disk space of files kept for later, which a new block may use."""
        return self._bytes_kept

    @property
    def waits_for_eviction(self) -> bool:
        """True if nothing is in transfer, and nothing can be begun before an eviction."""
        return self.out_of_budget and not self._staging and self.next_to_plan == self._next_to_begin

    @property
    def is_full(self) -> bool:
        """True if blocks are left, nothing is in transfer, and the last begin() found none that may be begun."""
        return not self._staging and self.blocks.is_known(self._next_to_begin)

    def part_ahead(self, current_block: int) -> float:
        """Blocks returned beyond ``current_block``, as a part of those allowed."""
        return min(1.0, max(0, self.next_to_plan - 1 - current_block) / self._blocks_ahead)

    @property
    def ended(self) -> bool:
        """True once every block was returned."""
        return self.blocks.end is not None and self.next_to_plan >= self.blocks.end

    def restart(self, block: int, in_cache: Iterable[int] = ()) -> list[int]:
        """Continue from ``block`` instead. ``in_cache``: files on disk; returns those that are not kept, to be deleted.

        Files in transfer remain so; all other staged files count as not staged.
        """
        self.next_to_plan = self._next_to_begin = block
        self._needed_by.clear()
        self._staged.clear()
        self._kept.clear()
        self._first_to_go.clear()
        self._bytes_kept = 0
        self._bytes_held = sum(self._sizes_bytes[file] for file in self._staging)
        found = {file: self._next_use.block(file, block) for file in in_cache if file not in self._staging}
        freed = []
        for file, use in sorted(found.items(), key=lambda item: math.inf if item[1] is None else item[1]):
            size_bytes = self._sizes_bytes[file]
            if use is None or self._bytes_held + size_bytes > self._budget_bytes:
                freed.append(file)
            else:
                self._bytes_held += size_bytes
                self._keep(file)
        return freed

    def begin(self, current_block: int) -> Begun:
        """Files to delete and to stage now, with the trainer at ``current_block``.

        Raises BadInputError if a block alone exceeds the budget.
        """
        begun = Begun([], [])
        self.out_of_budget = False
        while self.blocks.is_known(self._next_to_begin) and self._next_to_begin <= current_block + self._blocks_ahead:
            files = self.blocks.files(self._next_to_begin)
            new_bytes = sum(self._sizes_bytes[file] for file in files if not self._is_held(file))
            room_bytes = self._bytes_kept - sum(self._sizes_bytes[file] for file in files if file in self._kept)
            if self._bytes_held - room_bytes + new_bytes > self._budget_bytes:
                if not self._needed_by and not self._staging:
                    raise BadInputError(
                        f"{self._budget} holds no block of "
                        f"stream.block_files = {len(files)} files ({new_bytes / 2**30:.3g} GiB); raise it, or lower "
                        "stream.block_files"
                    )
                self.out_of_budget = True
                self.missing_bytes = self._bytes_held - room_bytes + new_bytes - self._budget_bytes
                break
            for file in files:
                if not self._is_held(file):
                    self._bytes_held += self._sizes_bytes[file]
                self._needed_by.setdefault(file, set()).add(self._next_to_begin)
                self._take_from_kept(file)
                if file not in self._staged and file not in self._staging:
                    self._staging.add(file)
                    begun.stage.append(file)
            while self._bytes_held > self._budget_bytes:
                begun.give_up.append(self._give_one_up())
            self._next_to_begin += 1
        return begun

    def add(self, staged: StagedFile) -> bool:
        """Add a staged (or quarantined) file. False if it is not needed any more: delete it."""
        was_on_its_way = staged.file in self._staging
        self._staging.discard(staged.file)
        if staged.file not in self._needed_by:
            if was_on_its_way:
                self._bytes_held -= self._sizes_bytes[staged.file]
            return False
        self._staged[staged.file] = staged
        return True

    def take_block(self) -> tuple[int, list[StagedFile]] | None:
        """Next block in order, once all its files are staged."""
        if self.next_to_plan >= self._next_to_begin:
            return None
        files = self.blocks.files(self.next_to_plan)
        if any(file not in self._staged for file in files):
            return None
        self.next_to_plan += 1
        return self.next_to_plan - 1, [self._staged[file] for file in files]

    def evict(self, before_block: int) -> list[int]:
        """Release the blocks before this one. Returns files to delete; those that are needed again are kept."""
        freed = []
        for file, blocks in list(self._needed_by.items()):
            done = {block for block in blocks if block < before_block}
            blocks -= done
            if blocks:
                continue
            del self._needed_by[file]
            staged = self._staged.pop(file, None)
            if file in self._staging:
                continue
            if staged is not None and self._may_be_kept(staged, max(done)):
                self._keep(file)
                continue
            self._bytes_held -= self._sizes_bytes[file]
            freed.append(file)
        return freed

    def validate(self) -> None:
        """Raise AssertionError if an invariant doesn't hold. For tests."""
        assert self.bytes_held <= self._budget_bytes
        assert self._staged.keys() <= self._needed_by.keys()
        assert not self._staged.keys() & self._staging
        assert self._needed_by.keys() <= self._staged.keys() | self._staging
        assert not self._kept.keys() & (self._needed_by.keys() | self._staging)
        assert self.next_to_plan <= self._next_to_begin
        held = self._needed_by.keys() | self._staging | self._kept.keys()
        assert self.bytes_held == sum(self._sizes_bytes[file] for file in held)
        assert self.bytes_kept == sum(self._sizes_bytes[file] for file in self._kept)
        assert {(number, file) for _, number, file in self._first_to_go} >= {(-n, f) for f, n in self._kept.items()}

    # -------------------------------------------------------------- files kept for later

    def _is_held(self, file: int) -> bool:
        return file in self._needed_by or file in self._staging or file in self._kept

    def _may_be_kept(self, staged: StagedFile, last_block: int) -> bool:
        """True if the file takes disk space, is sound, and another epoch follows."""
        if not self._sizes_bytes[staged.file] or staged.footer is None or not staged.path:
            return False
        return not self.blocks.epochs or self.blocks.epoch_of(last_block) + 1 < self.blocks.epochs

    def _keep(self, file: int) -> None:
        """Keep a file, which counts in ``_bytes_held`` already."""
        use = self._next_use.block(file, self._next_to_begin)
        number = next(self._numbers)
        self._kept[file] = number
        self._bytes_kept += self._sizes_bytes[file]
        # The file needed last is deleted first. If that is unknown, the newest: in a cycle it comes again last.
        heapq.heappush(self._first_to_go, (-math.inf if use is None else -use, -number, file))
        if len(self._first_to_go) > 2 * len(self._kept) + 1000:  # most entries are of files taken in the meantime
            self._first_to_go = [entry for entry in self._first_to_go if self._is_current(entry)]
            heapq.heapify(self._first_to_go)

    def _take_from_kept(self, file: int) -> None:
        if self._kept.pop(file, None) is not None:
            self._bytes_kept -= self._sizes_bytes[file]

    def _give_one_up(self) -> int:
        while not self._is_current(entry := heapq.heappop(self._first_to_go)):
            pass
        file = entry[2]
        self._take_from_kept(file)
        self._bytes_held -= self._sizes_bytes[file]
        return file

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        return self._kept.get(entry[2]) == -entry[1]
