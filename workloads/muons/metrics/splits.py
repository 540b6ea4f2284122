"""Splits of events by shower, never inside one: events of one shower are correlated. Pure."""

from __future__ import annotations

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import Bool, Int64
from workloads.muons.purposes import MuonPurpose


def halves(shower_E: Int64, splits: int, seed: int = 0) -> list[Bool]:
    """Random splits of the events into two halves, as masks (E,)."""
    names, index_E = np.unique(shower_E, return_inverse=True)
    found = []
    for number in range(splits):
        in_first = np.zeros(len(names), np.bool_)
        order = numpy_stream(MuonPurpose.SPLITS, seed, number).permutation(len(names))
        in_first[order[: len(names) // 2]] = True
        found.append(in_first[index_E])
    return found


def parts(shower_E: Int64, num: int, rng: np.random.Generator) -> Int64:
    """Part of each event, of ``num`` parts with about as many showers each. (E,)."""
    names, index_E = np.unique(shower_E, return_inverse=True)
    part_E: Int64 = (rng.permutation(len(names)) % num)[index_E]
    return part_E


def at_most(shower_E: Int64, most: int, rng: np.random.Generator) -> Bool:
    """Mask of whole showers, chosen at random, with at most ``most`` events together; at least one shower. (E,)."""
    names, index_E, sizes = np.unique(shower_E, return_inverse=True, return_counts=True)
    if len(shower_E) <= most:
        return np.ones(len(shower_E), np.bool_)
    order = rng.permutation(len(names))
    fits = np.cumsum(sizes[order]) <= most
    fits[0] = True
    chosen = np.zeros(len(names), np.bool_)
    chosen[order[fits]] = True
    return chosen[index_E]
