"""Microbatch bounds: consecutive events within the limits of particles and of Σ N², no tiny microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def microbatch_bounds(offsets: Int64, most_events: int, max_particles: int, max_squared: int = 0) -> Int64:
    """(M + 1,) event indices at which microbatches start and end, from (E + 1,) offsets.

    Every multiple of ``most_events`` is a bound; a last piece of less than half of that is joined to the one before.
    The events between two of these bounds are cut into
    the fewest microbatches within the limits, of about the same number of particles: at most ``max_particles``, and
    Σ N² ≤ ``max_squared`` over events of N particles (0: no such limit). Raises ValueError for an event that alone
    exceeds a limit: it is an outlier.
    """
    num_events = len(offsets) - 1
    if not num_events:
        return np.zeros(1, np.int64)
    edges = np.arange(0, num_events + most_events, most_events)
    edges[-1] = num_events
    if len(edges) > 2 and 2 * (edges[-1] - edges[-2]) < most_events:
        edges = np.delete(edges, -2)
    limits = [_Limit(offsets, max_particles, "particles")]
    if max_squared:
        squares = np.zeros(num_events + 1, np.int64)
        np.cumsum(np.diff(offsets) ** 2, out=squares[1:])
        limits.append(_Limit(squares, max_squared, "squared particles"))
    too_large = np.flatnonzero(np.any([np.diff(one.sums[edges]) > one.most for one in limits], axis=0))
    if not len(too_large):
        return edges
    cuts = [_balanced(offsets, limits, int(edges[i]), int(edges[i + 1])) for i in too_large]
    return np.sort(np.concatenate([edges, *cuts]))


@dataclass(frozen=True)
class _Limit:
    """Largest cost of a microbatch."""

    sums: Int64
    """Cost of all events before each one, and of all. (E + 1,)."""
    most: int
    name: str

    def last_that_fits(self, start: int) -> int:
        """Largest end of a microbatch that starts at event ``start``."""
        return int(np.searchsorted(self.sums, self.sums[start] + self.most, side="right")) - 1

    def first_that_fits(self, end: int) -> int:
        """Smallest start of a microbatch that ends before event ``end``."""
        return int(np.searchsorted(self.sums, self.sums[end] - self.most, side="left"))


def _balanced(offsets: Int64, limits: Sequence[_Limit], start: int, end: int) -> Int64:
    """Cuts of events ``start`` to ``end``."""
    num = len(_greedy_cuts(limits, start, end)) + 1
    earliest = _greedy_cuts_from_behind(limits, start, end)
    total = int(offsets[end] - offsets[start])
    cuts: list[int] = []
    last = start
    for i in range(num - 1):
        ideal = int(offsets[start]) + total * (i + 1) // num
        nearest = int(np.searchsorted(offsets, ideal))
        if ideal - offsets[nearest - 1] < offsets[nearest] - ideal:
            nearest -= 1
        # Not before `earliest`, or the events behind would not fit the rest; and no microbatch without an event.
        reach = min(_last_that_fits(limits, last), end - (num - 1 - i))
        last = min(max(nearest, earliest[i], last + 1), reach)
        cuts.append(last)
    return np.array(cuts, np.int64)


def _last_that_fits(limits: Sequence[_Limit], start: int) -> int:
    return min(one.last_that_fits(start) for one in limits)


def _greedy_cuts(limits: Sequence[_Limit], start: int, end: int) -> list[int]:
    """Cuts as late as possible: their number is the smallest possible."""
    cuts: list[int] = []
    while (stop := _last_that_fits(limits, start)) < end:
        if stop == start:
            one = next(one for one in limits if one.last_that_fits(start) == start)
            raise ValueError(f"event {start} has more than {one.most} {one.name}: it should be an outlier")
        cuts.append(stop)
        start = stop
    return cuts


def _greedy_cuts_from_behind(limits: Sequence[_Limit], start: int, end: int) -> list[int]:
    """Cuts as early as possible, with the same number."""
    cuts: list[int] = []
    while (begin := max(one.first_that_fits(end) for one in limits)) > start:
        cuts.append(begin)
        end = begin
    return cuts[::-1]
