"""Rates of rare events: generated over simulated, from very many events. Pure.

Shapes: E events, P muons, F events with muons.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from benchmarks.physics.spec import Source
from benchmarks.physics.truth import expected_muons
from workloads.muons.metrics.bundles import BundleArrays

ENERGIES_TEV = (1, 10, 30)
RADIUS_M = 100.0
MIN_MUONS = 100
"""Fewest muons of an event whose mean lg r is compared: it then shows the height that its muons share."""


class TailSums:
    """Sums over events that come block by block."""

    def __init__(self, cut_gev: float) -> None:
        self._cut_gev = cut_gev
        self.muons = self.below_cut = self.above_radius = 0
        self.above_energy = np.zeros(len(ENERGIES_TEV))
        self._large = np.zeros(3)

    def add(self, bundles: BundleArrays) -> None:
        """Add more events."""
        self.muons += len(bundles.energy_gev_P)
        self.above_energy += [(bundles.energy_gev_P > 1e3 * tev).sum() for tev in ENERGIES_TEV]
        self.below_cut += int((bundles.energy_gev_P < self._cut_gev).sum())
        self.above_radius += int((bundles.radius_m_P > RADIUS_M).sum())
        large = bundles.only(bundles.counts_E >= MIN_MUONS)
        mean_F = large.per_event(large.features["log10_radius"].values) / large.counts_E
        self._large += [len(mean_F), mean_F.sum(), (mean_F**2).sum()]

    @property
    def variance(self) -> float:
        """Variance of the mean lg r of events with many muons; NaN without any."""
        number, total, squares = self._large.tolist()
        return squares / number - (total / number) ** 2 if number else math.nan


class Tails:
    """Truth for a set of primaries: what the simulator's formulas expect of energies, and several draws of the rest."""

    def __init__(self, source: Source, primary_E4: npt.NDArray[np.float32]) -> None:
        self._source, self._primary_E4 = source, primary_E4
        self._real = self.new_sums()

    def new_sums(self) -> TailSums:
        """Sums for generated events of these primaries."""
        return TailSums(self._source.config.energy_cut_gev)

    def add_real(self, bundles: BundleArrays) -> None:
        """Add events of the simulator."""
        self._real.add(bundles)

    def ratios(self, generated: TailSums) -> dict[str, float]:
        """Metrics of generated events by name."""
        real, source, primary_E4 = self._real, self._source, self._primary_E4
        muons = expected_muons(primary_E4, source)
        found = {"energy_below_cut_share": _ratio(generated.below_cut, generated.muons)}
        for tev, number in zip(ENERGIES_TEV, generated.above_energy.tolist(), strict=True):
            share = expected_muons(primary_E4, source, 1e3 * tev) / muons
            found[f"energy_above_{tev}_tev_ratio"] = _ratio(number, generated.muons * share)
        radii = _ratio(real.above_radius, real.muons)
        found["radius_above_100_m_ratio"] = _ratio(generated.above_radius, generated.muons * radii)
        found["radius_variance_ratio"] = _ratio(generated.variance, real.variance)
        return found


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan
