"""The ranks of a run as far as texts are concerned: no torch. Ranks (ranks.py) connects several, SingleRank is one."""

from __future__ import annotations

from typing import Protocol


class RankGroup(Protocol):
    """One rank's view of all of them. Every method is called by all ranks, in the same order."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def is_first(self) -> bool:
        """True for the rank that writes what is written once for all."""

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""


class SingleRank:
    """One trainer process: nothing is sent anywhere."""

    rank = 0
    size = 1
    is_first = True

    def gather(self, text: str) -> list[str]:
        """The text itself."""
        return [text]
