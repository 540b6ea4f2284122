"""Output of the muon models."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Bundles(NamedTuple):
    """Generated events. The muons of an event are contiguous, events in order."""

    counts_E: Tensor
    """Numbers of muons, (E,) int64."""
    muons_P3: Tensor
    """Muons, (P, 3) float32: energy_gev, x_m, y_m."""
    num_capped: int
    """Number of events with a count above the limit, truncated to it."""
