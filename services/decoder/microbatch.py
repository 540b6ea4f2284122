"""Microbatch bounds: consecutive events, at most ``max_particles`` particles, no tiny microbatches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def microbatch_bounds(offsets: Int64, batch_events: int, max_particles: int) -> Int64:
    """(M + 1,) event indices at which microbatches start and end, from (E + 1,) offsets.

    Every multiple of ``batch_events`` is a bound, so that whole batches can be made of a unit's microbatches; a last
    piece of less than half a batch is joined to the one before. The events between two of these bounds are cut into
    the fewest microbatches that hold them, of about the same number of particles. Raises ValueError if an event has
    more than ``max_particles``: it is an outlier.
    """
    num_events = len(offsets) - 1
    if not num_events:
        return np.zeros(1, np.int64)
    edges = np.arange(0, num_events + batch_events, batch_events)
    edges[-1] = num_events
    if len(edges) > 2 and 2 * (edges[-1] - edges[-2]) < batch_events:
        edges = np.delete(edges, -2)
    too_large = np.flatnonzero(np.diff(offsets[edges]) > max_particles)
    if not len(too_large):
        return edges
    cuts = [_balanced(offsets, int(edges[i]), int(edges[i + 1]), max_particles) for i in too_large]
    return np.sort(np.concatenate([edges, *cuts]))


def _balanced(offsets: Int64, start: int, end: int, max_particles: int) -> Int64:
    """Cuts of events ``start`` to ``end``."""
    num = len(_greedy_cuts(offsets, start, end, max_particles)) + 1
    earliest = _greedy_cuts_from_behind(offsets, start, end, max_particles)
    total = int(offsets[end] - offsets[start])
    cuts: list[int] = []
    last = start
    for i in range(num - 1):
        ideal = int(offsets[start]) + total * (i + 1) // num
        nearest = int(np.searchsorted(offsets, ideal))
        if ideal - offsets[nearest - 1] < offsets[nearest] - ideal:
            nearest -= 1
        # Not before `earliest`, or the events behind would not fit the rest; and no microbatch without an event.
        reach = min(_last_that_fits(offsets, last, max_particles), end - (num - 1 - i))
        last = min(max(nearest, earliest[i], last + 1), reach)
        cuts.append(last)
    return np.array(cuts, np.int64)


def _last_that_fits(offsets: Int64, start: int, max_particles: int) -> int:
    return int(np.searchsorted(offsets, offsets[start] + max_particles, side="right")) - 1


def _greedy_cuts(offsets: Int64, start: int, end: int, max_particles: int) -> list[int]:
    """Cuts as late as possible: their number is the smallest possible."""
    cuts: list[int] = []
    while (stop := _last_that_fits(offsets, start, max_particles)) < end:
        if stop == start:
            raise ValueError(f"event {start} has more than {max_particles} particles: it should be an outlier")
        cuts.append(stop)
        start = stop
    return cuts


def _greedy_cuts_from_behind(offsets: Int64, start: int, end: int, max_particles: int) -> list[int]:
    """Cuts as early as possible, with the same number."""
    cuts: list[int] = []
    while (begin := int(np.searchsorted(offsets, offsets[end] - max_particles, side="left"))) > start:
        cuts.append(begin)
        end = begin
    return cuts[::-1]
