"""Order of events by length, and bounds of microbatches: consecutive events within limits, none of them tiny."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Limit = tuple[Int64, int, str]
"""Limit of a microbatch: (E + 1,) costs of all events before each one, and of all; the largest cost; its name."""


def bucketed(counts: Int64, batch_events: int, num_batches: int, random: np.random.Generator) -> Int64:
    """Order of events in which those of a batch are of similar length. (E,) particles of each event -> (E,) indices.

    Windows of ``num_batches`` batches are sorted by length, stable, and cut into batches of ``batch_events``; all of
    these are permuted. The events after the last whole batch stay behind, as they are: every multiple of
    ``batch_events`` remains a bound of batches.
    """
    num_whole = len(counts) // batch_events
    order = np.arange(len(counts))
    end = num_whole * batch_events
    for first in range(0, end, num_batches * batch_events):
        window = slice(first, min(first + num_batches * batch_events, end))
        order[window] = first + np.argsort(counts[window], kind="stable")
    batches = order[:end].reshape(num_whole, batch_events)
    order[:end] = batches[random.permutation(num_whole)].reshape(-1)
    return order


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
    limits = [(offsets, max_particles, "particles")]
    if max_squared:
        squares = np.zeros(num_events + 1, np.int64)
        np.cumsum(np.diff(offsets) ** 2, out=squares[1:])
        limits.append((squares, max_squared, "squared particles"))
    too_large = np.flatnonzero(np.any([np.diff(sums[edges]) > most for sums, most, _ in limits], axis=0))
    if not len(too_large):
        return edges
    cuts = [_balanced(offsets, limits, int(edges[i]), int(edges[i + 1])) for i in too_large]
    return np.sort(np.concatenate([edges, *cuts]))


def _last_that_fits(limits: Sequence[Limit], start: int) -> int:
    """Largest end of a microbatch that starts at event ``start``."""
    return min(int(np.searchsorted(sums, sums[start] + most, side="right")) - 1 for sums, most, _ in limits)


def _balanced(offsets: Int64, limits: Sequence[Limit], start: int, end: int) -> Int64:
    """Cuts of events ``start`` to ``end``."""
    num, first = 1, start  # cut as late as possible, their number is the smallest possible
    while (stop := _last_that_fits(limits, first)) < end:
        if stop == first:
            _, most, name = next(limit for limit in limits if _last_that_fits([limit], first) == first)
            raise ValueError(f"event {first} has more than {most} {name}: it should be an outlier")
        num, first = num + 1, stop
    earliest: list[int] = []  # as many, from behind
    first = end
    while (first := max(int(np.searchsorted(sums, sums[first] - most)) for sums, most, _ in limits)) > start:
        earliest.insert(0, first)
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
