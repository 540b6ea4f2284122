"""Events of similar length together in a batch, so that padding or the longest event of a batch costs less."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


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
