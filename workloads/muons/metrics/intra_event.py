"""Correlations inside an event: common height of a bundle, and energy with radius. Pure.

B sets of weights, E events, F events with muons, P muons.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import BundleArrays, Float64

VARIANCE_AT_LEAST = (5, 20, 100)
"""Fewest muons of the events whose mean radii are compared: with few, muons scatter; with many, events do."""
MIN_EVENTS = 20
"""Fewest real events with that many muons; with fewer there is no variance."""


class IntraEvent:
    """Comparison of quantities that depend on the grouping of muons into events."""

    def __init__(self, a: BundleArrays, b: BundleArrays) -> None:
        self._both = (_Moments(a), _Moments(b))
        self._at_least = [least for least in VARIANCE_AT_LEAST if (a.counts_E >= least).sum() >= MIN_EVENTS]

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Metrics by name; NaN where there is no event, or no muon, for it."""
        (real, weights_a_BF), (generated, weights_b_BF) = (
            (moments, weights_BE[:, moments.filled_F])
            for moments, weights_BE in zip(self._both, (weights_a_BE, weights_b_BE), strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            of_real = real.correlations(weights_a_BF)
            found = {name: of_b - of_real[name] for name, of_b in generated.correlations(weights_b_BF).items()}
            for least in self._at_least:
                ratio_B = generated.variance(weights_b_BF, least) / real.variance(weights_a_BF, least)
                found[f"mean_log10_radius_variance_ratio_at_least_{least}"] = ratio_B
        return found


class _Moments:
    def __init__(self, bundles: BundleArrays) -> None:
        energy_P, radius_P = bundles.features["log10_energy"], bundles.features["log10_radius"]
        counts_F = bundles.counts_E[bundles.filled_F]
        sums = [bundles.per_event(values_P) for values_P in (energy_P, radius_P)]
        products = (energy_P**2, radius_P**2, energy_P * radius_P)
        self.filled_F = bundles.filled_F
        # Columns: number, sums, sums of products, for a correlation over all muons.
        self._sums_F6 = np.stack([counts_F, *sums, *(bundles.per_event(values_P) for values_P in products)], 1)
        # The same inside the event: no mean, and products of differences from the event's mean.
        (energy_F, radius_F) = sums
        means = (energy_F**2, radius_F**2, energy_F * radius_F)
        self._within_F3 = self._sums_F6[:, 3:] - np.stack(means, 1) / counts_F[:, None]
        self._counts_F = counts_F
        self._mean_radius_F = radius_F / counts_F

    def correlations(self, weights_BF: Float64) -> dict[str, Float64]:
        """Correlations of energy and radius, by the names of their differences."""
        number, energy, radius, *squares = (weights_BF @ self._sums_F6).T
        e_mean, r_mean = energy / number, radius / number
        ee, rr, er = (sums / number for sums in squares)
        ee_in, rr_in, er_in = (weights_BF @ self._within_F3).T
        return {
            "energy_radius_correlation_difference": (er - e_mean * r_mean)
            / np.sqrt((ee - e_mean**2) * (rr - r_mean**2)),
            "energy_radius_correlation_within_events_difference": er_in / np.sqrt(ee_in * rr_in),
        }

    def variance(self, weights_BF: Float64, least: int) -> Float64:
        """Variance of the mean log10 r of events with at least ``least`` muons. (B,)."""
        chosen_F = self._counts_F >= least
        weights_BM, mean_M = weights_BF[:, chosen_F], self._mean_radius_F[chosen_F]
        total_B = weights_BM.sum(1)
        variance_B: Float64 = weights_BM @ mean_M**2 / total_B - (weights_BM @ mean_M / total_B) ** 2
        return variance_B
