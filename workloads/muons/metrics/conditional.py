"""Distances and mean counts in bins of the primaries: errors that marginal distributions hide. Pure.

B sets of weights, E events, K bins.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from workloads.muons.metrics.bundles import Bool, Float64, Int64
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.wasserstein import BinnedWasserstein, Values

CONDITIONAL_FEATURES = ("log10_energy", "log10_radius", "log10_count", "log10_bundle_energy")
MIN_EVENTS = 100
"""Fewest real, and generated, events of a bin; others are left out."""
MIN_VALUES = 50
"""Fewest values of the feature, likewise: a bin may have events and hardly a muon."""


class ConditionBins:
    """Bins of events. Edges are quantiles of the real primaries."""

    def __init__(self, primary_E4: Float64) -> None:
        edges = partial(_edges, primary_E4)
        self._energy, self._zenith, self._depth = edges(0, 4), edges(1, 3), edges(3, 3)
        self._masses = np.unique(primary_E4[:, 2])

    def of(self, primary_E4: Float64) -> dict[str, Int64]:
        """Bins by the prefix of the metric's name: energy (quartiles) and mass, zenith, depth (terciles)."""
        energy_E, zenith_E, depth_E = (
            np.searchsorted(edges, primary_E4[:, column], side="left")
            for column, edges in ((0, self._energy), (1, self._zenith), (3, self._depth))
        )
        mass_E = np.searchsorted(self._masses, primary_E4[:, 2])
        return {
            "conditional": mass_E * 4 + energy_E,
            "conditional_zenith": zenith_E,
            "conditional_depth": depth_E,
        }


def conditional_distances(a: Sample, b: Sample, bins: ConditionBins) -> dict[str, BinnedWasserstein]:
    """Distances ``<bins>_<feature>_w1``, for each feature that has bins with enough of both samples."""
    found = {}
    of_a, of_b = bins.of(a.primary_E4), bins.of(b.primary_E4)
    for name in of_a:
        for feature in CONDITIONAL_FEATURES:
            if (distance := binned_distance(a, b, feature, of_a[name], of_b[name])) is not None:
                found[f"{name}_{feature}_w1"] = distance
    return found


def binned_distance(a: Sample, b: Sample, feature: str, bin_a_E: Int64, bin_b_E: Int64) -> BinnedWasserstein | None:
    """Mean distance over the bins with enough of both samples; None if there is no such bin."""
    values_a, values_b, num_bins = _enough(_values(a, feature, bin_a_E), _values(b, feature, bin_b_E))
    return BinnedWasserstein(values_a, values_b, num_bins) if num_bins else None


class ConditionalCounts:
    """RMS over bins of the relative deviation of the mean count, generated / real - 1.

    A bin counts with its real muons: bins of few muons have the largest fluctuations.
    """

    def __init__(self, a: Sample, b: Sample, bins: ConditionBins) -> None:
        self._counts_a_E, self._counts_b_E = a.bundles.counts_E, b.bundles.counts_E
        self._bins = {}
        of_a, of_b = bins.of(a.primary_E4), bins.of(b.primary_E4)
        for name in of_a:
            size = int(max(of_a[name].max(), of_b[name].max())) + 1
            good_K = np.bincount(of_a[name], self._counts_a_E, size) >= MIN_VALUES
            for of in (of_a, of_b):
                good_K &= np.bincount(of[name], minlength=size) >= MIN_EVENTS
            if good_K.any():
                self._bins[f"{name}_count_mean_deviation"] = (of_a[name], of_b[name], good_K)

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Deviations ``<bins>_count_mean_deviation``; NaN where a bin has no event, or no real muon."""
        found = {}
        for name, (bin_a_E, bin_b_E, good_K) in self._bins.items():
            muons_a_BK, events_a_BK = _sums(self._counts_a_E, bin_a_E, weights_a_BE, good_K)
            muons_b_BK, events_b_BK = _sums(self._counts_b_E, bin_b_E, weights_b_BE, good_K)
            with np.errstate(divide="ignore", invalid="ignore"):
                deviation_BK = (muons_b_BK / events_b_BK) / (muons_a_BK / events_a_BK) - 1
                found[name] = np.sqrt((muons_a_BK * deviation_BK**2).sum(1) / muons_a_BK.sum(1))
        return found


def _sums(counts_E: Int64, bin_E: Int64, weights_BE: Float64, good_K: Bool) -> tuple[Float64, Float64]:
    """Weighted numbers of muons and of events in each of the good bins. (B, good bins)."""
    size = len(good_K)
    muons = [np.bincount(bin_E, weight_E * counts_E, size)[good_K] for weight_E in weights_BE]
    events = [np.bincount(bin_E, weight_E, size)[good_K] for weight_E in weights_BE]
    return np.stack(muons), np.stack(events)


def plain_distance(a: Sample, b: Sample, feature: str) -> BinnedWasserstein | None:
    """Distance with all events in one bin; None if one sample has no value."""
    values_a, values_b = (_values(one, feature, np.zeros(len(one), np.int64)) for one in (a, b))
    return BinnedWasserstein(values_a, values_b) if len(values_a.values) and len(values_b.values) else None


def _values(sample: Sample, feature: str, bin_E: Int64) -> Values:
    return Values(sample.bundles.features[feature], sample.bundles.events_of(feature), bin_E)


def _enough(a: Values, b: Values) -> tuple[Values, Values, int]:
    """Values with bins renumbered, without those of too few events or values, and the number of bins."""
    size = int(max(a.bin_E.max(initial=-1), b.bin_E.max(initial=-1))) + 1
    good = np.ones(size, np.bool_)
    for one in (a, b):
        good &= np.bincount(one.bin_E, minlength=size) >= MIN_EVENTS
        good &= np.bincount(one.bin_E[one.event], minlength=size) >= MIN_VALUES
    number = np.where(good, np.cumsum(good) - 1, -1)
    a, b = (Values(one.values, one.event, number[one.bin_E]) for one in (a, b))
    return a, b, int(good.sum())


def _edges(primary_E4: Float64, column: int, parts: int) -> Float64:
    """Edges between ``parts`` parts of equally many events."""
    edges: Float64 = np.quantile(primary_E4[:, column], np.arange(1, parts) / parts)
    return edges
