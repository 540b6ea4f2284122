"""Events with everything that an evaluation asks of them. Pure.

E events, P muons; the muons of an event are neighbours, events in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.physics.bundles import Bundles, Float64, Int64


@dataclass(frozen=True)
class Sample:
    """Primaries, and one bundle for each."""

    primary_E4: Float64
    """energy_gev, zenith_rad, mass_a, depth_m (vertical)."""
    shower_E: Int64
    """Events of one shower have one number: they are alike, and stay together wherever events are split."""
    bundles: Bundles
    weight_E: Float64 | None = None
    """How much each event counts; None: all the same."""

    def __len__(self) -> int:
        return len(self.shower_E)
