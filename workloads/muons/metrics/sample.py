"""Events with all data that an evaluation needs. Pure.

E events, P muons; the muons of an event are contiguous, events in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64, Int64


@dataclass(frozen=True)
class Sample:
    """Primaries, and one bundle for each."""

    primary_E4: Float64
    """energy_gev, zenith_rad, mass_a, depth_m (vertical)."""
    shower_E: Int64
    """Number of the shower of each event: events of one shower are correlated, and are never split."""
    bundles: BundleArrays
    weight_E: Float64 | None = None
    """Weight of each event; None: all equal."""

    def __len__(self) -> int:
        return len(self.shower_E)

    @property
    def weights_E(self) -> Float64:
        """Weight of each event, 1 if all are equal."""
        return np.ones(len(self)) if self.weight_E is None else self.weight_E.astype(np.float64)

    def only(self, chosen_E: Bool) -> Sample:
        """Sample of the chosen events."""
        weight_E = None if self.weight_E is None else self.weight_E[chosen_E]
        return Sample(self.primary_E4[chosen_E], self.shower_E[chosen_E], self.bundles.only(chosen_E), weight_E)

    def with_bundles(self, bundles: BundleArrays) -> Sample:
        """Sample of the same primaries with other muons."""
        return replace(self, bundles=bundles)
