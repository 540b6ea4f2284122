"""Showers drawn again with replacement, as weights of their events. Pure."""

from __future__ import annotations

import numpy as np

from services.physics.bundles import Float64, Int64


def resampled(shower_E: Int64, num: int, rng: np.random.Generator) -> Float64:
    """How often each event is drawn, in each of ``num`` bootstraps. (num, E).

    Showers are drawn, not events: events of one shower are alike, and would pretend to be more than they are.
    """
    names, index_E = np.unique(shower_E, return_inverse=True)
    size = len(names)
    times_BS = np.stack([np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(num)])
    return times_BS[:, index_E].astype(np.float64)
