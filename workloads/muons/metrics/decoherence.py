"""Distances between two muons of an event: the decoherence curve of deep underground detectors. Pure.

MACRO measured it as the distribution of the distances of all pairs (Phys. Rev. D 46 (1992) 4836).
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64

MAX_PAIRS = 50
"""Most pairs of one event; of more, as many are drawn at random. Else few large events would dominate."""


def pair_distances(bundles: BundleArrays, rng: np.random.Generator) -> tuple[Float64, Int64]:
    """Distance in metres of each pair, and its event."""
    counts_E = bundles.counts_E
    pairs_E = counts_E * (counts_E - 1) // 2
    event_Q = np.repeat(np.arange(len(counts_E)), np.minimum(pairs_E, MAX_PAIRS))
    first_of_event = np.concatenate([[0], np.cumsum(np.minimum(pairs_E, MAX_PAIRS))])[:-1]
    number_Q = np.arange(len(event_Q)) - first_of_event[event_Q]
    drawn_Q = (pairs_E > MAX_PAIRS)[event_Q]
    # With replacement: among 55 pairs or more, few are drawn twice.
    number_Q[drawn_Q] = rng.integers(0, pairs_E[event_Q[drawn_Q]])
    one_Q, other_Q = _pair(number_Q)
    first_muon_Q = (np.cumsum(counts_E) - counts_E)[event_Q]
    one_Q, other_Q = one_Q + first_muon_Q, other_Q + first_muon_Q
    x_P, y_P = bundles.x_m_P, bundles.y_m_P
    distance_Q: Float64 = np.hypot(x_P[one_Q] - x_P[other_Q], y_P[one_Q] - y_P[other_Q])
    return distance_Q, event_Q


def _pair(number: Int64) -> tuple[Int64, Int64]:
    """Indices (larger, smaller) of a numbered pair: 0 -> (1, 0), 1 -> (2, 0), 2 -> (2, 1), 3 -> (3, 0), ..."""
    larger = ((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > number  # the root of a large number may be rounded up
    return larger, number - larger * (larger - 1) // 2
