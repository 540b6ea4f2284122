"""Microbatch bounds: consecutive events, at most ``max_particles`` particles, cut at every ``batch_events`` events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def microbatch_bounds(offsets: npt.NDArray[np.int64], batch_events: int, max_particles: int) -> npt.NDArray[np.int64]:
    """(M + 1,) event indices at which microbatches start and end, from (E + 1,) offsets.

    Every multiple of ``batch_events`` is a bound, so that whole batches can be made of a unit's microbatches; between
    two of them the cut is greedy. Raises ValueError if an event has more than ``max_particles``: it is an outlier.
    """
    num_events = len(offsets) - 1
    bounds = [0]
    start = 0
    while start < num_events:
        # The last event that still fits: offsets are sorted, so this is one binary search a microbatch.
        end = int(np.searchsorted(offsets, offsets[start] + max_particles, side="right")) - 1
        if end == start:
            raise ValueError(f"event {start} has more than {max_particles} particles: it should be an outlier")
        start = min(end, (start // batch_events + 1) * batch_events, num_events)
        bounds.append(start)
    return np.asarray(bounds, np.int64)
