"""Numbers that compare two samples: distances, counts, tails, correlations inside events, calibration of counts. Pure.

The first Wasserstein distance W1 is the area between two cumulative distributions, in the unit of the values: the mean
distance by which probability has to be moved. Values are sorted once; then each set of weights takes one running sum.

B sets of weights, E events, F events with muons, P muons, K bins, Q pairs of muons, V different numbers of muons, T
tails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64, Int64, Sample


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
            "count_mean_ratio": _ratio(mean_q, mean_p),
            "count_fano_ratio": _ratio(fano_q, fano_p),
        }
        for least in AT_LEAST:
            many_V = self._values >= least
            metrics[f"count_at_least_{least}_ratio"] = _ratio(q_BV[:, many_V].sum(1), p_BV[:, many_V].sum(1))
        return metrics

    def _pmf(self, code_E: Int64, weights_BE: Float64) -> Float64:
        size = len(self._values)
        sums_BV = np.stack([np.bincount(code_E, weight_E, size) for weight_E in weights_BE])
        total_B1 = sums_BV.sum(1, keepdims=True)
        # A bootstrap of few showers may draw no such event: NaN.
        pmf_BV: Float64 = np.divide(sums_BV, total_B1, out=np.full_like(sums_BV, np.nan), where=total_B1 > 0)
        return pmf_BV

    def _moments(self, pmf_BV: Float64) -> tuple[Float64, Float64]:
        """Return the mean, and the Fano factor: variance / mean, 1 for a Poisson distribution."""
        mean_B = pmf_BV @ self._values
        variance_B = pmf_BV @ self._values.astype(np.float64) ** 2 - mean_B**2
        return mean_B, _ratio(variance_B, mean_B)


def _ratio(above_B: Float64, below_B: Float64) -> Float64:
    ratio_B: Float64 = np.divide(above_B, below_B, out=np.full(len(above_B), np.nan), where=below_B > 0)
    return ratio_B


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
            ratios_BT = np.where(shares_a_BT > 0, shares_b_BT / shares_a_BT, np.nan)
            found = dict(zip(self._names, ratios_BT.T, strict=True))
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
            of_real = real.correlations(weights_a_BF)
            found = {name: of_b - of_real[name] for name, of_b in generated.correlations(weights_b_BF).items()}
            for least in self._at_least:
                ratio_B = generated.variance(weights_b_BF, least) / real.variance(weights_a_BF, least)
                found[f"mean_log10_radius_variance_ratio_at_least_{least}"] = ratio_B
        return found


class _Moments:
    """Sums of energies and radii of each event with muons, for correlations and variances of many bootstraps."""

    def __init__(self, bundles: BundleArrays) -> None:
        energy_P, radius_P = (bundles.features[name].values for name in ("log10_energy", "log10_radius"))
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
        """Return correlations of energy and radius, by the names of their differences."""
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
        """Return the variance of the mean log10 r of events with at least ``least`` muons. (B,)."""
        chosen_F = self._counts_F >= least
        weights_BM, mean_M = weights_BF[:, chosen_F], self._mean_radius_F[chosen_F]
        total_B = weights_BM.sum(1)
        variance_B: Float64 = weights_BM @ mean_M**2 / total_B - (weights_BM @ mean_M / total_B) ** 2
        return variance_B


class UniformityKS:
    """Kolmogorov-Smirnov distance of u in [0, 1] from the uniform distribution, for many sets of weights.

    For the probability integral transform u = P(N < n) + v P(N = n), v uniform: u is uniform if the model is right.
    """

    def __init__(self, u_E: Float64) -> None:
        self._order = np.argsort(u_E)
        self._sorted = u_E[self._order]

    def __call__(self, weights_BE: Float64) -> Float64:
        """Return distances, (B, E) -> (B,)."""
        distances = []
        for weight_E in weights_BE:
            after = self._cumulative(weight_E)
            before = np.concatenate([[0.0], after[:-1]])
            distances.append(max((after - self._sorted).max(), (self._sorted - before).max()))
        return np.array(distances)

    def null(self, weight_E: Float64, weights_BE: Float64) -> Float64:
        """Return distances of bootstraps from the sample, what chance alone does. (E,), (B, E) -> (B,).

        Bootstraps of whole showers have the correlations of their events.
        """
        sample = self._cumulative(weight_E)
        return np.array([np.abs(self._cumulative(one_E) - sample).max() for one_E in weights_BE])

    def _cumulative(self, weight_E: Float64) -> Float64:
        """Return the weight up to each value of u, in order, 1 at the end."""
        after: Float64 = np.cumsum(weight_E[self._order])
        after /= after[-1]
        return after
