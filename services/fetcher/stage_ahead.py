"""Which files to stage next, which block is complete, what may be deleted. Pure: the service moves the bytes."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import BadInputError
from services.fetcher.plan import Blocks, StagedFile


class StageAhead:
    """Stages blocks in order, ``blocks_ahead`` beyond the one being dealt out, within ``budget_bytes`` of disk.

    ``sizes_bytes``: what each file takes of the budget (0: used in place).
    """

    def __init__(self, blocks: Blocks, sizes_bytes: Sequence[int], *, budget_bytes: int, blocks_ahead: int) -> None:
        self.blocks = blocks
        self.next_to_plan = 0
        """First block that take_block() has not given out."""
        self.out_of_budget = False
        """The next block was not begun because the files behind it fill the budget."""
        self._sizes_bytes = sizes_bytes
        self._budget_bytes = budget_bytes
        self._blocks_ahead = blocks_ahead
        self._next_to_begin = 0
        self._needed_by: dict[int, set[int]] = {}  # file -> blocks that were begun and are not evicted
        self._staged: dict[int, StagedFile] = {}
        self._staging: set[int] = set()

    @property
    def bytes_held(self) -> int:
        """Disk that staged files take, and those on their way."""
        return sum(self._sizes_bytes[file] for file in self._needed_by)

    @property
    def waits_for_eviction(self) -> bool:
        """Nothing is on its way, and nothing can be begun before something is evicted."""
        return self.out_of_budget and not self._staging and self.next_to_plan == self._next_to_begin

    @property
    def is_full(self) -> bool:
        """Blocks are left, nothing is on its way, and the last begin() found none that may be begun."""
        return not self._staging and self.blocks.is_known(self._next_to_begin)

    def part_ahead(self, current_block: int) -> float:
        """Blocks given out beyond ``current_block``, as a part of those that may be."""
        return min(1.0, max(0, self.next_to_plan - 1 - current_block) / self._blocks_ahead)

    @property
    def ended(self) -> bool:
        """True once every block was given out."""
        return self.blocks.end is not None and self.next_to_plan >= self.blocks.end

    def restart(self, block: int) -> None:
        """Go on from ``block`` instead; nothing staged so far is counted on."""
        self.next_to_plan = self._next_to_begin = block
        self._needed_by.clear()
        self._staged.clear()

    def begin(self, current_block: int) -> list[int]:
        """Files to stage now, if the trainer is at ``current_block``.

        Raises BadInputError if a block alone exceeds the budget.
        """
        files: list[int] = []
        self.out_of_budget = False
        while self.blocks.is_known(self._next_to_begin) and self._next_to_begin <= current_block + self._blocks_ahead:
            block = self.blocks.files(self._next_to_begin)
            new_bytes = sum(self._sizes_bytes[file] for file in block if file not in self._needed_by)
            if self.bytes_held + new_bytes > self._budget_bytes:
                if not self._needed_by:
                    raise BadInputError(
                        f"fetcher.disk_budget_gib = {self._budget_bytes / 2**30:g} holds no block of "
                        f"stream.block_files = {len(block)} files ({new_bytes / 2**30:.3g} GiB); raise it, or lower "
                        "stream.block_files"
                    )
                self.out_of_budget = True
                break
            for file in block:
                self._needed_by.setdefault(file, set()).add(self._next_to_begin)
                if file not in self._staged and file not in self._staging:
                    self._staging.add(file)
                    files.append(file)
            self._next_to_begin += 1
        return files

    def add(self, staged: StagedFile) -> bool:
        """A file is there (or quarantined). False if nobody needs it any more: delete it."""
        self._staging.discard(staged.file)
        if staged.file not in self._needed_by:
            return False
        self._staged[staged.file] = staged
        return True

    def take_block(self) -> tuple[int, list[StagedFile]] | None:
        """The next block in order, once all its files are there."""
        if self.next_to_plan >= self._next_to_begin:
            return None
        files = self.blocks.files(self.next_to_plan)
        if any(file not in self._staged for file in files):
            return None
        self.next_to_plan += 1
        return self.next_to_plan - 1, [self._staged[file] for file in files]

    def evict(self, before_block: int) -> list[int]:
        """Blocks before this one are done with. Returns files that nobody needs any more."""
        freed = []
        for file, blocks in list(self._needed_by.items()):
            blocks.difference_update([block for block in blocks if block < before_block])
            if not blocks:
                del self._needed_by[file]
                if self._staged.pop(file, None) is not None:
                    freed.append(file)
        return freed

    def validate(self) -> None:
        """Raise AssertionError if an invariant doesn't hold. For tests."""
        assert self.bytes_held <= self._budget_bytes
        assert self._staged.keys() <= self._needed_by.keys()
        assert not self._staged.keys() & self._staging
        assert self.next_to_plan <= self._next_to_begin
