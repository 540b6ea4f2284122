"""Events with everything that an evaluation asks of them. Pure.

E events, P muons; the muons of an event are neighbours, events in order.
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
    """Events of one shower have one number: they are alike, and stay together wherever events are split."""
    bundles: BundleArrays
    weight_E: Float64 | None = None
    """How much each event counts; None: all the same."""

    def __len__(self) -> int:
        return len(self.shower_E)

    @property
    def weights_E(self) -> Float64:
        """How much each event counts, as numbers."""
        return np.ones(len(self)) if self.weight_E is None else self.weight_E.astype(np.float64)

    def only(self, chosen_E: Bool) -> Sample:
        """Some of the events."""
        weight_E = None if self.weight_E is None else self.weight_E[chosen_E]
        return Sample(self.primary_E4[chosen_E], self.shower_E[chosen_E], self.bundles.only(chosen_E), weight_E)

    def with_bundles(self, bundles: BundleArrays) -> Sample:
        """The same primaries with other muons."""
        return replace(self, bundles=bundles)
