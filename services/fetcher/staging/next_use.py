"""Next use of a file: the earliest block that needs it, within a horizon of the plan. Pure."""

from __future__ import annotations

from common.plan import Blocks

HORIZON_FILES = 200_000
"""Horizon in files, which bounds memory and time. Each file is indexed about twice an epoch."""


class NextUse:
    """Index of the blocks ahead, rebuilt once half of it lies behind."""

    def __init__(self, blocks: Blocks, horizon_files: int = HORIZON_FILES) -> None:
        self._blocks = blocks
        self._horizon_files = horizon_files
        self._uses: dict[int, int] = {}  # file -> its first block that is indexed
        self._begin = self._end = 0  # the indexed blocks

    def block(self, file: int, after: int) -> int | None:
        """First block from ``after`` on that needs the file; None if it is unknown, or too far ahead."""
        if not self._begin <= after < (self._begin + self._end) / 2:
            self._index(after)
        use = self._uses.get(file)
        return use if use is not None and use >= after else None

    def _index(self, begin: int) -> None:
        self._uses.clear()
        self._begin = self._end = begin
        num_files = 0
        last = begin + 2 * self._blocks.per_epoch  # by then each file was needed
        while num_files < self._horizon_files and self._end < last and self._blocks.is_known(self._end):
            files = self._blocks.files(self._end)
            for file in files:
                self._uses.setdefault(file, self._end)
            num_files += len(files)
            self._end += 1
