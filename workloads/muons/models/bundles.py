"""What a muon model generates."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Bundles(NamedTuple):
    """Generated events. The muons of an event are neighbours, events in order."""

    counts_E: Tensor
    """(E,) int64."""
    muons_P3: Tensor
    """(P, 3) float32: energy_gev, x_m, y_m."""
    num_capped: int
    """Events whose count was cut down to the most that is allowed."""
