"""Correlations inside an event: common height of a bundle, and energy with radius. Pure.

B sets of weights, E events, P muons, M large events.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import BundleArrays, Float64

MIN_MUONS = 20
"""Fewest muons of an event; with fewer, statistical fluctuations dominate its mean radius."""


class IntraEvent:
    """Differences, generated minus real, of quantities that depend on the grouping of muons into events."""

    def __init__(self, a: BundleArrays, b: BundleArrays) -> None:
        self._both = (_Moments(a), _Moments(b))

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Metrics by name; NaN where there is no event, or no muon, for it."""
        real, generated = (
            moments(weights_BE) for moments, weights_BE in zip(self._both, (weights_a_BE, weights_b_BE), strict=True)
        )
        return {name: generated[name] - real[name] for name in real}


class _Moments:
    def __init__(self, bundles: BundleArrays) -> None:
        energy_P, radius_P = bundles.features["log10_energy"], bundles.features["log10_radius"]
        counts_F = bundles.counts_E[bundles.filled_F]
        sums = [bundles.per_event(values_P) for values_P in (energy_P, radius_P)]
        products = (energy_P**2, radius_P**2, energy_P * radius_P)
        self._filled_F = bundles.filled_F
        # Columns: number, sums, sums of products, for a correlation over all muons.
        self._sums_F6 = np.stack([counts_F, *sums, *(bundles.per_event(values_P) for values_P in products)], 1)
        # The same inside the event: no mean, and products of differences from the event's mean.
        (energy_F, radius_F) = sums
        means = (energy_F**2, radius_F**2, energy_F * radius_F)
        self._within_F3 = self._sums_F6[:, 3:] - np.stack(means, 1) / counts_F[:, None]
        large_F = counts_F >= MIN_MUONS
        self._large_M = self._filled_F[large_F]
        self._mean_radius_M = radius_F[large_F] / counts_F[large_F]

    def __call__(self, weights_BE: Float64) -> dict[str, Float64]:
        weights_BF, weights_BM = weights_BE[:, self._filled_F], weights_BE[:, self._large_M]
        number, energy, radius, *squares = (weights_BF @ self._sums_F6).T
        with np.errstate(divide="ignore", invalid="ignore"):
            e_mean, r_mean = energy / number, radius / number
            ee, rr, er = (sums / number for sums in squares)
            ee_in, rr_in, er_in = (weights_BF @ self._within_F3).T
            total_B = weights_BM.sum(1)
            mean_B = weights_BM @ self._mean_radius_M / total_B
            return {
                "mean_log10_radius_variance_difference": weights_BM @ self._mean_radius_M**2 / total_B - mean_B**2,
                "energy_radius_correlation_difference": (er - e_mean * r_mean)
                / np.sqrt((ee - e_mean**2) * (rr - r_mean**2)),
                "energy_radius_correlation_within_events_difference": er_in / np.sqrt(ee_in * rr_in),
            }
