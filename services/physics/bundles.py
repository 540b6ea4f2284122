"""Muon bundles as flat arrays, and the numbers of a bundle that physicists look at. Pure.

E events, P muons; the muons of an event are neighbours, events in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

RADIUS_OFFSET_M = 0.1
"""Of lg(r + offset): closer to the shower axis, distances are not told apart."""
_MIN_ENERGY_GEV = 1e-9


@dataclass(frozen=True)
class Bundles:
    """Events with the energies and the distances to the shower axis of their muons."""

    counts_E: Int64
    energy_gev_P: Float64
    radius_m_P: Float64

    @classmethod
    def of(cls, counts_E: npt.NDArray[np.integer], muons_P3: npt.NDArray[np.floating]) -> Bundles:
        """From counts and muons (P, 3) = [energy_gev, x_m, y_m]."""
        wide_P3 = muons_P3.astype(np.float64)
        return cls(counts_E.astype(np.int64), wide_P3[:, 0], np.hypot(wide_P3[:, 1], wide_P3[:, 2]))

    def __len__(self) -> int:
        return len(self.counts_E)

    def only(self, chosen_E: Bool) -> Bundles:
        """Some of the events."""
        chosen_P = np.repeat(chosen_E, self.counts_E)
        return Bundles(self.counts_E[chosen_E], self.energy_gev_P[chosen_P], self.radius_m_P[chosen_P])

    def finite(self) -> tuple[Bundles, int]:
        """Without muons whose energy or position is not finite, and how many these are."""
        good_P = np.isfinite(self.energy_gev_P) & np.isfinite(self.radius_m_P)
        if good_P.all():
            return self, 0
        kept_before = np.concatenate([[0], np.cumsum(good_P)])
        offsets = np.concatenate([[0], np.cumsum(self.counts_E)])
        kept = Bundles(np.diff(kept_before[offsets]), self.energy_gev_P[good_P], self.radius_m_P[good_P])
        return kept, int((~good_P).sum())

    @cached_property
    def features(self) -> dict[str, Float64]:
        """By name; one number an event for ``count``, one a muon or one an event with muons for the others."""
        energy_P = np.maximum(self.energy_gev_P, _MIN_ENERGY_GEV)
        sum_energy = self._per_event(np.add, energy_P)
        return {
            "count": self.counts_E.astype(np.float64),
            "lg_e": np.log10(energy_P),
            "lg_r": np.log10(self.radius_m_P + RADIUS_OFFSET_M),
            "r": self.radius_m_P,
            "lg_sum_e": np.log10(sum_energy),
            "lg_e_max": np.log10(self._per_event(np.maximum, energy_P)),
            "r_weighted": self._per_event(np.add, energy_P * self.radius_m_P) / sum_energy,
        }

    def _per_event(self, operation: np.ufunc, values_P: Float64) -> Float64:
        """One number for each event with muons."""
        first = (np.cumsum(self.counts_E) - self.counts_E)[self.counts_E > 0]
        if not len(first):
            return np.zeros(0)
        reduced: Float64 = operation.reduceat(values_P, first)
        return reduced
