"""Group of ranks that exchanges texts, without torch. Ranks (ranks.py) connects several, SingleRank is one."""

from __future__ import annotations

from typing import Protocol


class RankGroup(Protocol):
    """Group of ranks, as seen by one. Every method is called by all ranks, in the same order."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def is_first(self) -> bool:
        """True for the rank that writes for all."""

    def gather(self, text: str) -> list[str]:
        """Texts of all ranks, in the order of the ranks."""


class SingleRank:
    """Group of a single trainer process: nothing is sent."""

    rank = 0
    size = 1
    is_first = True

    def gather(self, text: str) -> list[str]:
        """List of the text itself."""
        return [text]
