"""Numbers that compare two samples: distances, counts, tails, correlations, equal primaries, calibration. Pure.

The first Wasserstein distance W1 is the area between two cumulative distributions, in the unit of the values: the mean
distance by which probability has to be moved. Values are sorted once; then each set of weights takes one running sum.

B sets of weights, E events, F events with muons, P muons, K bins, Q pairs of muons, V different numbers of muons, T
tails, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64, Int64, Sample
from workloads.muons.showers.bundles import vertical_depth_mwe
from workloads.muons.simulator.muons import surface_energy_gev


@dataclass(frozen=True)
class Values:
    """Numbers, and the event of each: a muon has the weight and the bin of its event."""

    values: Float64
    event: Int64
    bin_E: Int64
    """Bin of each event; -1: left out."""


class BinnedWasserstein:
    """The mean over bins of W1 between ``a`` and ``b``. Each bin needs values of both."""

    def __init__(self, a: Values, b: Values, num_bins: int = 1) -> None:
        values, bins, events, items = [], [], [], []
        for one, first_event in ((a, 0), (b, len(a.bin_E))):
            kept = one.bin_E[one.event] >= 0
            event = one.event[kept]
            values.append(one.values[kept])
            bins.append(one.bin_E[event])
            events.append(event + first_event)
            items.append(np.bincount(event, minlength=len(one.bin_E)))
        value, of_bin = np.concatenate(values), np.concatenate(bins)
        order = np.argsort(value)
        if num_bins > 1:  # small integers are sorted by their digits: much faster than np.lexsort
            order = order[np.argsort(of_bin[order].astype(np.min_scalar_type(num_bins)), kind="stable")]
        self._event = np.concatenate(events)[order]
        self._items_E = np.concatenate(items).astype(np.float64)
        self._step = np.diff(value[order])
        # At the end of a bin both distributions have reached 1: the running sum is 0 again for the next bin.
        self._step[np.diff(of_bin[order]) > 0] = 0.0
        self._side_E = np.concatenate([np.maximum(a.bin_E, 0) * 2, np.maximum(b.bin_E, 0) * 2 + 1])
        self._num_bins = num_bins

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> Float64:
        """Return the distance for each of B sets of event weights; NaN where a bin has no weight."""
        return np.array([self._one(np.concatenate(both)) for both in zip(weights_a_BE, weights_b_BE, strict=True)])

    def _one(self, weight_E: Float64) -> float:
        total = np.bincount(self._side_E, weight_E * self._items_E, 2 * self._num_bins)
        if not (total > 0).all():
            return float("nan")
        total[1::2] *= -1
        difference = np.cumsum((weight_E / total[self._side_E])[self._event][:-1])
        return float(np.abs(difference, out=difference) @ self._step) / self._num_bins


CONDITIONAL_FEATURES = ("log10_energy", "log10_radius", "log10_count", "log10_bundle_energy")
MIN_EVENTS = 100
"""Fewest real, and generated, events of a bin; others are left out."""
MIN_VALUES = 50
"""Fewest values of the feature, likewise: a bin may have events and hardly a muon."""


class ConditionBins:
    """Bins of events: marginal distributions hide errors in them. Edges are quantiles of the real primaries."""

    def __init__(self, primary_E4: Float64) -> None:
        parts_of_columns = {0: 4, 1: 3, 3: 3}
        self._edges = {
            column: np.quantile(primary_E4[:, column], np.arange(1, parts) / parts)
            for column, parts in parts_of_columns.items()
        }
        self._masses = np.unique(primary_E4[:, 2])

    def of(self, primary_E4: Float64) -> dict[str, Int64]:
        """Return bins by the prefix of the metric's name: energy (quartiles) and mass, zenith, depth (terciles)."""
        energy_E, zenith_E, depth_E = (
            np.searchsorted(edges, primary_E4[:, column], side="left") for column, edges in self._edges.items()
        )
        mass_E = np.searchsorted(self._masses, primary_E4[:, 2])
        return {"conditional": mass_E * 4 + energy_E, "conditional_zenith": zenith_E, "conditional_depth": depth_E}


def conditional_distances(a: Sample, b: Sample, bins: ConditionBins) -> dict[str, BinnedWasserstein]:
    """Return distances ``<bins>_<feature>_w1``, for each feature that has bins with enough of both samples."""
    found = {}
    of_a, of_b = bins.of(a.primary_E4), bins.of(b.primary_E4)
    for name in of_a:
        for feature in CONDITIONAL_FEATURES:
            if (distance := binned_distance(a, b, feature, of_a[name], of_b[name])) is not None:
                found[f"{name}_{feature}_w1"] = distance
    return found


def binned_distance(a: Sample, b: Sample, feature: str, bin_a_E: Int64, bin_b_E: Int64) -> BinnedWasserstein | None:
    """Return the mean distance over the bins with enough of both samples; None if there is no such bin."""
    sides = [(one.bundles.features[feature], bin_E) for one, bin_E in ((a, bin_a_E), (b, bin_b_E))]
    size = int(max(bin_E.max(initial=-1) for _, bin_E in sides)) + 1
    good = np.ones(size, np.bool_)
    for of, bin_E in sides:
        good &= np.bincount(bin_E, minlength=size) >= MIN_EVENTS
        good &= np.bincount(bin_E[of.events], minlength=size) >= MIN_VALUES
    number = np.where(good, np.cumsum(good) - 1, -1)
    values_a, values_b = (Values(*of, number[bin_E]) for of, bin_E in sides)
    return BinnedWasserstein(values_a, values_b, int(good.sum())) if good.any() else None


MAX_PAIRS = 50
"""Most pairs of one event; of more, as many are drawn at random. Else few large events would dominate."""


def pair_distances(bundles: BundleArrays, rng: np.random.Generator) -> tuple[Float64, Int64]:
    """Return the distance in metres of each pair of muons of an event, and its event.

    Its distribution is the decoherence curve of deep underground detectors (MACRO, Phys. Rev. D 46 (1992) 4836).
    """
    counts_E = bundles.counts_E
    pairs_E = counts_E * (counts_E - 1) // 2
    event_Q = np.repeat(np.arange(len(counts_E)), np.minimum(pairs_E, MAX_PAIRS))
    first_of_event = np.concatenate([[0], np.cumsum(np.minimum(pairs_E, MAX_PAIRS))])[:-1]
    number_Q = np.arange(len(event_Q)) - first_of_event[event_Q]
    drawn_Q = (pairs_E > MAX_PAIRS)[event_Q]
    # With replacement: among 55 pairs or more, few are drawn twice.
    number_Q[drawn_Q] = rng.integers(0, pairs_E[event_Q[drawn_Q]])
    one_Q, other_Q = _pair(number_Q)
    first_muon_Q = (np.cumsum(counts_E) - counts_E)[event_Q]
    one_Q, other_Q = one_Q + first_muon_Q, other_Q + first_muon_Q
    x_P, y_P = bundles.x_m_P, bundles.y_m_P
    distance_Q: Float64 = np.hypot(x_P[one_Q] - x_P[other_Q], y_P[one_Q] - y_P[other_Q])
    return distance_Q, event_Q


def _pair(number: Int64) -> tuple[Int64, Int64]:
    """Return indices (larger, smaller) of a numbered pair: 0 -> (1, 0), 1 -> (2, 0), 2 -> (2, 1), 3 -> (3, 0), ..."""
    larger = ((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > number  # the root of a large number may be rounded up
    return larger, number - larger * (larger - 1) // 2


AT_LEAST = (2, 4, 10, 100)


class CountMetrics:
    """The metrics of p(N) of ``b`` (generated) against that of ``a`` (real)."""

    def __init__(self, counts_a_E: Int64, counts_b_E: Int64) -> None:
        self._values, code = np.unique(np.concatenate([counts_a_E, counts_b_E]), return_inverse=True)
        self._code_a_E, self._code_b_E = np.split(code, [len(counts_a_E)])

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Return metrics by name; a ratio is NaN where the real number is 0."""
        p_BV, q_BV = self._pmf(self._code_a_E, weights_a_BE), self._pmf(self._code_b_E, weights_b_BE)
        steps = np.diff(np.log10(1.0 + self._values))
        between_BV = np.abs(np.cumsum(p_BV - q_BV, 1))[:, :-1]
        (mean_p, fano_p), (mean_q, fano_q) = self._moments(p_BV), self._moments(q_BV)
        empty_V = self._values == 0
        metrics = {
            "count_tv": np.abs(p_BV - q_BV).sum(1) / 2,
            "log10_count_w1": between_BV @ steps,
            "count_empty_difference": q_BV[:, empty_V].sum(1) - p_BV[:, empty_V].sum(1),
            "count_mean_ratio": ratio(mean_q, mean_p),
            "count_fano_ratio": ratio(fano_q, fano_p),
        }
        for least in AT_LEAST:
            many_V = self._values >= least
            metrics[f"count_at_least_{least}_ratio"] = ratio(q_BV[:, many_V].sum(1), p_BV[:, many_V].sum(1))
        return metrics

    def _pmf(self, code_E: Int64, weights_BE: Float64) -> Float64:
        size = len(self._values)
        sums_BV: Float64 = np.stack([np.bincount(code_E, weight_E, size) for weight_E in weights_BE])
        return ratio(sums_BV, sums_BV.sum(1, keepdims=True))  # a bootstrap of few showers may draw no such event: NaN

    def _moments(self, pmf_BV: Float64) -> tuple[Float64, Float64]:
        """Return the mean, and the Fano factor: variance / mean, 1 for a Poisson distribution."""
        mean_B = pmf_BV @ self._values
        variance_B = pmf_BV @ self._values.astype(np.float64) ** 2 - mean_B**2
        return mean_B, ratio(variance_B, mean_B)


def ratio(above: Float64, below: Float64) -> Float64:
    """Return the ratio, of any shapes that fit each other; NaN where the denominator is 0."""
    above, below = np.broadcast_arrays(above, below)
    found: Float64 = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return found


ENERGY_ABOVE_TEV = (1, 10, 30)
RADIUS_ABOVE_M = 100
MIN_MUONS = 10
"""Fewest real muons of a tail; with fewer, an honest generator may have none."""


class TailMetrics:
    """Shares of the muons of ``b`` (generated) in the tails of ``a`` (real), too rare for a distance to see."""

    def __init__(self, a: BundleArrays, b: BundleArrays) -> None:
        self._below_cut_b_E = _per_event(b, b.energy_gev_P < a.energy_gev_P.min(initial=np.inf))
        self._has_muons = len(a.energy_gev_P) > 0
        self._counts_a_E, self._counts_b_E = (one.counts_E.astype(np.float64) for one in (a, b))
        tails_a, tails_b = _tails(a), _tails(b)
        self._names = [name for name, chosen_P in tails_a.items() if chosen_P.sum() >= MIN_MUONS]
        self._a_ET, self._b_ET = (
            np.stack([_per_event(one, tails[name]) for name in self._names], 1)
            if self._names
            else np.zeros((len(one), 0))
            for one, tails in ((a, tails_a), (b, tails_b))
        )

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Return metrics by name; NaN where there is no muon of the weighted sample."""
        muons_a_B, muons_b_B = weights_a_BE @ self._counts_a_E, weights_b_BE @ self._counts_b_E
        with np.errstate(divide="ignore", invalid="ignore"):
            shares_a_BT = (weights_a_BE @ self._a_ET) / muons_a_B[:, None]
            shares_b_BT = (weights_b_BE @ self._b_ET) / muons_b_B[:, None]
            found = dict(zip(self._names, ratio(shares_b_BT, shares_a_BT).T, strict=True))
            if self._has_muons:
                found["energy_below_cut_share"] = (weights_b_BE @ self._below_cut_b_E) / muons_b_B
        return found


def _tails(bundles: BundleArrays) -> dict[str, Bool]:
    """Return masks of the muons in each tail, (P,), by the name of its metric."""
    found = {f"energy_above_{tev}_tev_ratio": bundles.energy_gev_P > 1e3 * tev for tev in ENERGY_ABOVE_TEV}
    return {**found, f"radius_above_{RADIUS_ABOVE_M}_m_ratio": bundles.radius_m_P > RADIUS_ABOVE_M}


def _per_event(bundles: BundleArrays, chosen_P: Bool) -> Float64:
    """Return the number of chosen muons of each event. (E,)."""
    return np.bincount(bundles.event_P[chosen_P], minlength=len(bundles)).astype(np.float64)


VARIANCE_AT_LEAST = (5, 20, 100)
"""Fewest muons of the events whose mean radii are compared: with few, muons scatter; with many, events do."""
MIN_VARIANCE_EVENTS = 20
"""Fewest real events with that many muons; with fewer there is no variance."""


class IntraEvent:
    """Comparison of quantities that depend on the grouping of muons into events."""

    def __init__(self, a: BundleArrays, b: BundleArrays) -> None:
        self._both = (_Moments(a), _Moments(b))
        self._at_least = [least for least in VARIANCE_AT_LEAST if (a.counts_E >= least).sum() >= MIN_VARIANCE_EVENTS]

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Return metrics by name; NaN where there is no event, or no muon, for it."""
        (real, weights_a_BF), (generated, weights_b_BF) = (
            (moments, weights_BE[:, moments.filled_F])
            for moments, weights_BE in zip(self._both, (weights_a_BE, weights_b_BE), strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            difference_B = generated.correlation(weights_b_BF) - real.correlation(weights_a_BF)
            found = {"energy_radius_correlation_within_events_difference": difference_B}
            for least in self._at_least:
                ratio_B = generated.variance(weights_b_BF, least) / real.variance(weights_a_BF, least)
                found[f"mean_log10_radius_variance_ratio_at_least_{least}"] = ratio_B
        return found


class _Moments:
    """Sums of energies and radii of each event with muons, for correlations and variances of many bootstraps."""

    def __init__(self, bundles: BundleArrays) -> None:
        energy_P, radius_P = (bundles.features[name].values for name in ("log10_energy", "log10_radius"))
        self.filled_F = bundles.filled_F
        self._counts_F = bundles.counts_E[bundles.filled_F]
        energy_F, radius_F = (bundles.per_event(values_P) / self._counts_F for values_P in (energy_P, radius_P))
        # Sums of products of differences from the event's means.
        products = (energy_P**2, energy_F**2), (radius_P**2, radius_F**2), (energy_P * radius_P, energy_F * radius_F)
        self._within_3F = np.stack([bundles.per_event(of_P) - self._counts_F * of_F for of_P, of_F in products])
        self._mean_radius_F = radius_F

    def correlation(self, weights_BF: Float64) -> Float64:
        """Return the correlation of energy and radius inside events. (B,)."""
        energies_B, radii_B, both_B = self._within_3F @ weights_BF.T
        correlation_B: Float64 = both_B / np.sqrt(energies_B * radii_B)
        return correlation_B

    def variance(self, weights_BF: Float64, least: int) -> Float64:
        """Return the variance of the mean log10 r of events with at least ``least`` muons. (B,)."""
        chosen_F = self._counts_F >= least
        weights_BM, mean_M = weights_BF[:, chosen_F], self._mean_radius_F[chosen_F]
        total_B = weights_BM.sum(1)
        variance_B: Float64 = weights_BM @ mean_M**2 / total_B - (weights_BM @ mean_M / total_B) ** 2
        return variance_B


LEAST_MEAN = 5.0
"""Smallest expected number of muons of the events whose fluctuations are compared; those of fewer are chance."""
MIN_FLUCTUATING_EVENTS = 50
"""Fewest of these real events of a bin."""
_FITS = 12
_ASSUMED_VARIANCE = 0.1
"""Relative variance of N beside Poisson's, for the weights of the fit alone."""


def conditions(primary_E4: Float64) -> Float64:
    """Return all products of two of: 1 and five numbers of the primary, each of about 1. (E, 4) -> (E, 21).

    ln E, ln A, cos zenith, depth along the track, and the part of a nucleon's energy that a muon needs to reach it, by
    which Elbert's formula has the number of muons fall to 0.
    """
    energy_E, zenith_E, mass_E, depth_E = primary_E4.T
    mass_E = np.maximum(mass_E, 1.0)  # a photon has mass number 0 and counts as one nucleon
    cos_E = np.maximum(np.cos(zenith_E), 0.1)
    needed_gev_E = surface_energy_gev(0.0, vertical_depth_mwe(depth_E) / cos_E)
    part_E = np.minimum(mass_E * needed_gev_E / energy_E, 20.0) / 4
    numbers = (np.log(energy_E) / 5 - 3, np.log(mass_E) / 2, 2 * cos_E, depth_E / cos_E / 2e3, part_E)
    columns = [np.ones(len(primary_E4)), *numbers]
    return np.stack([first_E * second_E for first_E, second_E in combinations_with_replacement(columns, 2)], 1)


def _regression(columns_EC: Float64, weight_E: Float64, target_E: Float64) -> Float64:
    """Return the coefficients of least squares; those of columns that tell nothing new are small. (C,)."""
    weighted_EC = columns_EC * weight_E[:, None]
    ridge = 1e-9 * max(weight_E.sum(), 1.0) * np.eye(columns_EC.shape[1])
    found: Float64 = np.linalg.solve(weighted_EC.T @ columns_EC + ridge, weighted_EC.T @ target_E)
    return found


class CountScale:
    """Expected number of muons N of each primary, and its standard deviation: smooth functions fitted to real events.

    One for all samples of an evaluation: samples are compared in its units, so that its errors cancel. Bins are those
    of mass and energy (quartiles) of the events with LEAST_MEAN expected muons or more.
    """

    def __init__(self, real: Sample) -> None:
        columns_EC, counts_E = conditions(real.primary_E4), real.bundles.counts_E.astype(np.float64)
        log_mean_E = np.log(counts_E + 0.5)
        for _ in range(_FITS):
            mean_E = np.exp(log_mean_E)
            target_E = log_mean_E + (counts_E - mean_E) / mean_E
            self._slopes = _regression(columns_EC, mean_E / (1 + _ASSUMED_VARIANCE * mean_E), target_E)
            log_mean_E = np.clip(columns_EC @ self._slopes, -15.0, 12.0)
        mean_E = np.exp(log_mean_E)
        many_E = mean_E >= LEAST_MEAN
        self.mass_a = np.unique(real.primary_E4[:, 2])
        self._edges = np.quantile(real.primary_E4[many_E, 0], (0.25, 0.5, 0.75)) if many_E.any() else np.zeros(3)
        bin_E = self._bin(real.primary_E4, mean_E)[many_E]
        events_K = np.bincount(bin_E, minlength=4 * len(self.mass_a))
        self.bins = np.flatnonzero(events_K >= MIN_FLUCTUATING_EVENTS)
        self.masses = np.unique(self.bins // 4)
        beside_poisson_E = (((counts_E - mean_E) ** 2 - mean_E) / mean_E**2)[many_E]
        self._variance_K = np.bincount(bin_E, beside_poisson_E, len(events_K)) / np.maximum(events_K, 1)

    def of(self, primary_E4: Float64, columns_EC: Float64) -> tuple[Float64, Float64, Int64]:
        """Return mean and standard deviation of N, and the bin, -1: none. ``columns_EC``: conditions of these."""
        mean_E = np.exp(np.clip(columns_EC @ self._slopes, -15.0, 12.0))
        bin_E = self._bin(primary_E4, mean_E)
        variance_E = mean_E + np.maximum(self._variance_K[bin_E], 0.0) * mean_E**2
        return mean_E, np.sqrt(variance_E), np.where(np.isin(bin_E, self.bins), bin_E, -1)

    def _bin(self, primary_E4: Float64, mean_E: Float64) -> Int64:
        bin_E = np.searchsorted(self.mass_a, primary_E4[:, 2]) * 4 + np.searchsorted(self._edges, primary_E4[:, 0])
        return np.where(mean_E >= LEAST_MEAN, bin_E, -1)


class EqualPrimaries:
    """Comparison of the fluctuations at one primary: of N, and of what the muons of an event have in common."""

    def __init__(self, a: Sample, b: Sample, scale: CountScale) -> None:
        self._both = _Deviations(a, scale), _Deviations(b, scale)

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Return metrics by name; NaN where there are too few events."""
        with np.errstate(divide="ignore", invalid="ignore"):
            real, generated = self._both[0](weights_a_BE), self._both[1](weights_b_BE)
            ratio_BM = generated.pop("mean_by_mass") / real.pop("mean_by_mass")
            found = {"count_mean_by_mass_deviation": np.abs(ratio_BM - 1).max(1)}
            for name, value_B in real.items():
                is_ratio = name.endswith("_ratio")
                found[name] = generated[name] / value_B if is_ratio else generated[name] - value_B
        return found


class _Deviations:
    """Deviations of a sample from what is expected of its primaries, as sums for many bootstraps."""

    def __init__(self, sample: Sample, scale: CountScale) -> None:
        bundles, columns_EC = sample.bundles, conditions(sample.primary_E4)
        counts_E = bundles.counts_E.astype(np.float64)
        mean_E, deviation_E, bin_E = scale.of(sample.primary_E4, columns_EC)
        z_E, precision_E = (counts_E - mean_E) / deviation_E, (mean_E / deviation_E) ** 2
        of_counts = precision_E, precision_E * counts_E / mean_E
        self._in_bins = _Sums(bin_E, scale.bins, np.ones(len(sample)), z_E, z_E**2, z_E**3, *of_counts)
        self._of_masses = _Sums(bin_E // 4, scale.masses, *of_counts)
        self._rows = _of_showers(sample, z_E, bin_E)
        mass_E = np.searchsorted(scale.mass_a, sample.primary_E4[:, 2])
        of_muons = {name: _residuals(sample, name, columns_EC) for name in ("log10_energy", "log10_radius")}
        self._pairs = {
            name: _Sums(np.where(counts_E > 1, mass_E, -1), scale.masses, *_pairs(counts_E, *sums))
            for name, sums in of_muons.items()
        }
        radius_E = of_muons["log10_radius"][0]
        products = (counts_E, counts_E * z_E, radius_E, counts_E * z_E**2, radius_E**2 / np.maximum(counts_E, 1))
        self._with_radius = _Sums(np.where(counts_E > 0, np.minimum(bin_E, 0), -1), [0], *products, z_E * radius_E)

    def __call__(self, weights_BE: Float64) -> dict[str, Float64]:
        """Return values by the names of their ratios and differences, and mean N / expected N. (B,), (B, masses)."""
        size_BK, z_BK, square_BK, cube_BK, precision_BK, count_BK = self._in_bins(weights_BE)
        mean_BK = z_BK / size_BK
        variance_BK = square_BK / size_BK - mean_BK**2
        third_BK = cube_BK / size_BK - 3 * mean_BK * square_BK / size_BK + 2 * mean_BK**3
        total_B, number_BK = size_BK.sum(1), count_BK / precision_BK
        precision_BM, count_BM = self._of_masses(weights_BE)
        muons, z, radius, zz, rr, zr = self._with_radius(weights_BE)[:, :, 0]
        variances = (zz / muons - (z / muons) ** 2) * (rr / muons - (radius / muons) ** 2)
        return {
            "mean_by_mass": count_BM / precision_BM,
            # z is N in units that depend on the primary alone: its variance / mean is N's in other units.
            "count_fano_by_primary_ratio": (size_BK * variance_BK / number_BK).sum(1) / total_B,
            "count_skewness_by_primary_ratio": (size_BK * third_BK / variance_BK**1.5).sum(1) / total_B,
            "count_depth_correlation_difference": _intraclass(self._rows(weights_BE)),
            "count_radius_correlation_difference": (zr / muons - z * radius / muons**2) / np.sqrt(variances),
            "radius_intraclass_by_mass_ratio": _intraclass(self._pairs["log10_radius"](weights_BE)),
            "energy_intraclass_by_mass_difference": _intraclass(self._pairs["log10_energy"](weights_BE)),
        }


def _of_showers(sample: Sample, z_E: Float64, bin_E: Int64) -> _Sums:
    """Return sums of _pairs over the rows of each shower, which stand at its first row."""
    chosen = np.flatnonzero(bin_E >= 0)
    # Files of several productions may share ids: events with different primaries are different showers.
    keys = np.column_stack([sample.shower_E[chosen], sample.primary_E4[chosen, :3]])
    _, first, shower = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    sums_3E = np.zeros((3, len(sample)))
    sums_3E[:, chosen[first]] = [np.bincount(shower.reshape(-1), z_E[chosen] ** power) for power in range(3)]
    return _Sums(np.where(sums_3E[0] > 1, 0, -1), [0], *_pairs(*sums_3E))


def _residuals(sample: Sample, feature: str, columns_EC: Float64) -> tuple[Float64, Float64]:
    """Return sum and sum of squares over each event's muons of deviations from a smooth function of the primary.

    The sample's own: means that are wrong in a sample are no correlation in it.
    """
    bundles, columns_FC = sample.bundles, columns_EC[sample.bundles.filled_F]
    values_P = bundles.features[feature].values
    counts_F = bundles.counts_E[bundles.filled_F].astype(np.float64)
    sum_F, square_F = bundles.per_event(values_P), bundles.per_event(values_P**2)
    mean_F = columns_FC @ _regression(columns_FC, counts_F, sum_F / counts_F)
    residuals_2E = np.zeros((2, len(sample)))
    residuals_2E[:, bundles.filled_F] = sum_F - counts_F * mean_F, square_F + mean_F * (counts_F * mean_F - 2 * sum_F)
    return residuals_2E[0], residuals_2E[1]


def _pairs(size_E: Float64, sum_E: Float64, square_E: Float64) -> tuple[Float64, ...]:
    """Return the arguments, and the sum of the products of all pairs of a group's members in units of its size."""
    return size_E, sum_E, square_E, (sum_E**2 - square_E) / np.maximum(size_E - 1, 1)


def _intraclass(sums_4BK: Float64) -> Float64:
    """Return the correlation of two members of a group, mean over K, from sums of _pairs. (B,)."""
    size_BK, sum_BK, square_BK, pairs_BK = sums_4BK
    squared_mean_BK = (sum_BK / size_BK) ** 2
    mean_B: Float64 = ((pairs_BK / size_BK - squared_mean_BK) / (square_BK / size_BK - squared_mean_BK)).mean(1)
    return mean_B


class _Sums:
    """Sums of columns over the events of each of some bins, for many sets of weights."""

    def __init__(self, bin_E: Int64, bins: Sequence[int] | Int64, *columns_E: Float64) -> None:
        # Without any bin, an empty one: its sums are 0, what is made of them NaN.
        events_of_bins = [np.flatnonzero(bin_E == number) for number in bins] or [np.zeros(0, np.int64)]
        self._parts = [(events, np.stack([column_E[events] for column_E in columns_E], 1)) for events in events_of_bins]

    def __call__(self, weights_BE: Float64) -> Float64:
        """Return sums. (B, E) -> (columns, B, bins)."""
        return np.stack([(weights_BE[:, events] @ columns_EC).T for events, columns_EC in self._parts], 2)


class UniformityKS:
    """Kolmogorov-Smirnov distance of u in [0, 1] from the uniform distribution, for many sets of weights.

    For the probability integral transform u = P(N < n) + v P(N = n), v uniform: u is uniform if the model is right.
    """

    def __init__(self, u_E: Float64, bin_E: Int64 | None = None) -> None:
        """``bin_E``: bin of each event, for the mean distance of the bins with MIN_EVENTS; None: one bin of all."""
        bin_E = np.zeros(len(u_E), np.int64) if bin_E is None else bin_E
        chosen = np.flatnonzero((np.bincount(bin_E) >= min(MIN_EVENTS, len(u_E)))[bin_E])
        self._order = chosen[np.lexsort((u_E[chosen], bin_E[chosen]))]
        self._sorted = u_E[self._order]
        self._first = np.flatnonzero(np.diff(bin_E[self._order], prepend=-1))
        self._sizes = np.diff(self._first, append=len(chosen))

    def __call__(self, weights_BE: Float64) -> Float64:
        """Return distances, (B, E) -> (B,). NaN without a bin, or where one has no weight."""
        distances = []
        for weight_E in weights_BE:
            before, after = self._cumulative(weight_E)
            distances.append(self._mean_of_largest(np.maximum(after - self._sorted, self._sorted - before)))
        return np.array(distances)

    def null(self, weight_E: Float64, weights_BE: Float64) -> Float64:
        """Return distances of bootstraps from the sample, what chance alone does. (E,), (B, E) -> (B,).

        Bootstraps of whole showers have the correlations of their events.
        """
        sample = self._cumulative(weight_E)[1]
        return np.array([self._mean_of_largest(np.abs(self._cumulative(one_E)[1] - sample)) for one_E in weights_BE])

    def _cumulative(self, weight_E: Float64) -> tuple[Float64, Float64]:
        """Return the part of the weight of its bin below each value of u, in order, and that with the value's own."""
        ordered = weight_E[self._order]
        total = np.repeat(np.add.reduceat(ordered, self._first), self._sizes) if len(ordered) else ordered
        after = np.cumsum(ordered)
        after -= np.repeat(after[self._first] - ordered[self._first], self._sizes)
        with np.errstate(invalid="ignore"):
            return (after - ordered) / total, after / total

    def _mean_of_largest(self, distances: Float64) -> float:
        return float(np.maximum.reduceat(distances, self._first).mean()) if len(distances) else float("nan")
