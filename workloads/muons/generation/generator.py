"""Interface of all trained models: counts and muons for given primaries.

E events, P muons; the muons of an event are contiguous, events in order.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class MuonGenerator(Protocol):
    """Trained model. All random numbers come from ``random``, a generator on ``device``."""

    @property
    def device(self) -> torch.device:
        """Device of the computation."""

    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """Numbers of muons. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m (vertical)] -> (E,) int64, unbounded."""

    def draw_muons(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """Muons of events with these counts. -> (P, 3) float32 = [energy_gev, x_m, y_m]."""

    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """P(N < n) and P(N <= n) of the model for each event's n, each (E,) float64."""
