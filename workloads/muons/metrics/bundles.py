"""Muon bundles as flat arrays, and their physical observables. Pure.

E events, P muons; the muons of an event are contiguous, events in order.
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
"""Offset in log10(r + offset): smaller distances to the shower axis are not resolved."""
_MIN_ENERGY_GEV = 1e-9

EVENT_FEATURES = ("count", "log10_count")
"""Features with one value for each event."""
MUON_FEATURES = ("log10_energy", "log10_radius", "radius_m", "x_m")
"""Features with one value for each muon."""
BUNDLE_FEATURES = ("log10_bundle_energy", "log10_leading_energy", "mean_radius_m", "weighted_radius_m")
"""Features with one value for each event with muons."""


@dataclass(frozen=True)
class BundleArrays:
    """Events with the energies of their muons and the positions relative to the shower axis."""

    counts_E: Int64
    energy_gev_P: Float64
    x_m_P: Float64
    y_m_P: Float64

    @classmethod
    def of(cls, counts_E: npt.NDArray[np.integer], muons_P3: npt.NDArray[np.floating]) -> BundleArrays:
        """Bundles from counts and muons (P, 3) = [energy_gev, x_m, y_m]."""
        wide_P3 = muons_P3.astype(np.float64)
        return cls(counts_E.astype(np.int64), *(np.ascontiguousarray(column_P) for column_P in wide_P3.T))

    def __len__(self) -> int:
        return len(self.counts_E)

    def only(self, chosen_E: Bool) -> BundleArrays:
        """Bundles of the chosen events."""
        return self._muons(self.counts_E[chosen_E], np.repeat(chosen_E, self.counts_E))

    def finite(self) -> tuple[BundleArrays, int]:
        """Bundles without muons of non-finite energy or position, and the number of these muons."""
        good_P = np.isfinite(self.energy_gev_P) & np.isfinite(self.x_m_P) & np.isfinite(self.y_m_P)
        if good_P.all():
            return self, 0
        kept_before = np.concatenate([[0], np.cumsum(good_P)])
        offsets = np.concatenate([[0], np.cumsum(self.counts_E)])
        return self._muons(np.diff(kept_before[offsets]), good_P), int((~good_P).sum())

    @cached_property
    def radius_m_P(self) -> Float64:
        """Distance of each muon to the shower axis."""
        radius_m_P: Float64 = np.hypot(self.x_m_P, self.y_m_P)
        return radius_m_P

    @cached_property
    def event_P(self) -> Int64:
        """Event of each muon."""
        return np.repeat(np.arange(len(self)), self.counts_E)

    @cached_property
    def filled_F(self) -> Int64:
        """Indices of the F events with muons."""
        return np.flatnonzero(self.counts_E)

    @cached_property
    def features(self) -> dict[str, Float64]:
        """Values by name: EVENT_FEATURES, MUON_FEATURES and BUNDLE_FEATURES."""
        energy_P = np.maximum(self.energy_gev_P, _MIN_ENERGY_GEV)
        sum_energy_F = self.per_event(energy_P)
        return {
            "count": self.counts_E.astype(np.float64),
            "log10_count": np.log10(1.0 + self.counts_E),
            "log10_energy": np.log10(energy_P),
            "log10_radius": np.log10(self.radius_m_P + RADIUS_OFFSET_M),
            "radius_m": self.radius_m_P,
            "x_m": self.x_m_P,
            "log10_bundle_energy": np.log10(sum_energy_F),
            "log10_leading_energy": np.log10(self.per_event(energy_P, np.maximum)),
            "mean_radius_m": self.per_event(self.radius_m_P) / self.counts_E[self.filled_F],
            "weighted_radius_m": self.per_event(energy_P * self.radius_m_P) / sum_energy_F,
        }

    def events_of(self, feature: str) -> Int64:
        """Event of each value of the feature."""
        if feature in EVENT_FEATURES:
            return np.arange(len(self))
        return self.event_P if feature in MUON_FEATURES else self.filled_F

    def per_event(self, values_P: Float64, operation: np.ufunc = np.add) -> Float64:
        """Values reduced for each event with muons, by default to their sum. (P,) -> (F,)."""
        if not len(self.filled_F):
            return np.zeros(0)
        reduced_F: Float64 = operation.reduceat(values_P, (np.cumsum(self.counts_E) - self.counts_E)[self.filled_F])
        return reduced_F

    def _muons(self, counts_E: Int64, chosen_P: Bool) -> BundleArrays:
        return BundleArrays(counts_E, self.energy_gev_P[chosen_P], self.x_m_P[chosen_P], self.y_m_P[chosen_P])
