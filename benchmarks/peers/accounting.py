"""Events that a resumed stream lost, repeated or moved, against an undisturbed one. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Account(NamedTuple):
    """Difference of two streams of events."""

    lost: int
    """Events of the undisturbed stream that never came."""
    repeated: int
    """Events that came more often than in the undisturbed stream."""
    moved: int
    """Fewest events that would have to be moved to restore the order of those that came."""
    empty_loops: int = 0
    """Loops without any event before these."""

    @property
    def is_exact(self) -> bool:
        return not any(self)


def account(undisturbed: Sequence[int], resumed: Sequence[int]) -> Account:
    """Account of a resumed stream. Arguments: ids of the events in order, once each in the undisturbed stream.

    Of an event that came several times, the first is taken for the order.
    """
    expected, came = Counter(undisturbed), Counter(resumed)
    if len(expected) != len(undisturbed):
        raise ValueError("the undisturbed stream has events twice")
    ranks = {event: rank for rank, event in enumerate(undisturbed)}
    in_order = [ranks[event] for event in dict.fromkeys(resumed) if event in ranks]
    return Account(
        lost=(expected - came).total(),
        repeated=(came - expected).total(),
        moved=len(in_order) - longest_increasing(in_order),
    )


def longest_increasing(numbers: Sequence[int]) -> int:
    """Length of the longest increasing subsequence of different numbers."""
    ends: list[int] = []
    for number in numbers:
        place = bisect_left(ends, number)
        ends[place : place + 1] = [number]
    return len(ends)


def mixing(batches: Sequence[Sequence[int]]) -> float:
    """chi²/dof of the file over batches, as in docs/explanation/mixing.md: 1 for a permutation of all events, about the
    size of a batch if each comes from one file. Argument: number of the file of each event, by batch."""
    of_files = Counter(file for batch in batches for file in batch)
    total = of_files.total()
    chi_square = 0.0
    for batch in batches:
        found = Counter(batch)
        for file, events in of_files.items():
            expected = len(batch) * events / total
            chi_square += (found[file] - expected) ** 2 / expected
    return chi_square / ((len(batches) - 1) * (len(of_files) - 1))
