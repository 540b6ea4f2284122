"""All metrics of generated events, with errors and floors, and their definitions in the order in which they are shown.

B sets of weights, E events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.base.report.metric import TARGETS, Definition, Floor, Metric, bootstrap_error
from workloads.base.report.page import MetricReport
from workloads.muons.metrics import distances
from workloads.muons.metrics.bundles import (
    BUNDLE_FEATURES,
    FLOOR_SPLITS,
    MUON_FEATURES,
    PANEL_SPLITS,
    Bool,
    BundleArrays,
    EvaluationSettings,
    Float64,
    Int64,
    Sample,
    WeightSets,
    halves,
)
from workloads.muons.purposes import MuonPurpose

REDRAWS = 8
"""Number of independent redraws of the real events, for the floors and their errors."""


_DEX = "dex"
_BINS = {
    "conditional": "over bins of primary energy and mass",
    "conditional_zenith": "over bins of zenith",
    "conditional_depth": "over bins of depth",
}
_FEATURES = {
    "log10_energy": "log10 E of the muons",
    "log10_radius": "log10(r + 0.1 m) of the muons",
    "log10_count": "log10(1 + N) of the events",
    "log10_bundle_energy": "log10 of a bundle's sum of E",
}

DEFINITIONS: Mapping[str, Definition] = {
    "count_tv": Definition("", "lower", "total variation distance of the numbers of muons, 0 to 1"),
    "log10_count_w1": Definition(_DEX, "lower", "W1 of log10(1 + N)"),
    "count_empty_difference": Definition("", "zero", "fraction of events without muons: generated - real"),
    "count_mean_ratio": Definition("", "one", "mean number of muons: generated / real"),
    "count_fano_ratio": Definition("", "one", "variance / mean of the number of muons: generated / real"),
    **{
        f"count_at_least_{number}_ratio": Definition(
            "", "one", f"events with at least {number} muons: generated / real"
        )
        for number in distances.AT_LEAST
    },
    "count_pit_ks": Definition(
        "", "lower", "are the model's count probabilities right? KS distance of the PIT from uniform"
    ),
    "count_pit_by_primary_ks": Definition("", "lower", "the same, mean over bins of primary energy and mass"),
    "count_mean_by_mass_deviation": Definition(
        "", "lower", "mean N by mass, generated / real: largest distance from 1"
    ),
    "count_fano_by_primary_ratio": Definition("", "one", "variance / mean of N at one primary: generated / real"),
    "count_skewness_by_primary_ratio": Definition("", "one", "skewness of N at one primary: generated / real"),
    "count_depth_correlation_difference": Definition(
        "", "zero", "correlation of N at two depths of a shower, at one primary: generated - real"
    ),
    "count_radius_correlation_difference": Definition(
        "", "zero", "correlation of N and an event's mean log10 r, at one primary: generated - real"
    ),
    "log10_energy_w1": Definition(_DEX, "lower", "W1 of log10 E of all muons"),
    "log10_radius_w1": Definition(_DEX, "lower", "W1 of log10(r + 0.1 m) of all muons"),
    "radius_m_w1": Definition("m", "lower", "W1 of the muons' distance to the shower axis"),
    "x_m_w1": Definition("m", "lower", "W1 of the muons' x"),
    "log10_bundle_energy_w1": Definition(_DEX, "lower", "W1 of log10 of a bundle's sum of E"),
    "log10_leading_energy_w1": Definition(_DEX, "lower", "W1 of log10 of a bundle's largest E"),
    "mean_radius_m_w1": Definition("m", "lower", "W1 of a bundle's mean r"),
    "weighted_radius_m_w1": Definition("m", "lower", "W1 of a bundle's energy-weighted mean r"),
    "decoherence_m_w1": Definition("m", "lower", "W1 of the distances between two muons of an event"),
    **{
        f"{bins}_{feature}_w1": Definition(_DEX, "lower", f"W1 of {of}, mean {where}")
        for bins, where in _BINS.items()
        for feature, of in _FEATURES.items()
    },
    **{
        f"energy_above_{tev}_tev_ratio": Definition(
            "", "one", f"fraction of the muons with E > {tev} TeV: generated / real"
        )
        for tev in distances.ENERGY_ABOVE_TEV
    },
    "energy_below_cut_share": Definition("", "lower", "fraction of generated muons with E below the smallest real E"),
    f"radius_above_{distances.RADIUS_ABOVE_M}_m_ratio": Definition(
        "", "one", f"fraction of the muons with r > {distances.RADIUS_ABOVE_M} m: generated / real"
    ),
    **{
        f"mean_log10_radius_variance_ratio_at_least_{least}": Definition(
            "", "one", f"variance of the mean log10 r of events with {least} muons or more: generated / real"
        )
        for least in distances.VARIANCE_AT_LEAST
    },
    "radius_intraclass_by_mass_ratio": Definition(
        "", "one", "correlation of log10 r of two muons of an event, at one primary: generated / real"
    ),
    "energy_intraclass_by_mass_difference": Definition(
        "", "zero", "correlation of log10 E of two muons of an event, at one primary: generated - real"
    ),
    "energy_radius_correlation_within_events_difference": Definition(
        "", "zero", "correlation of log10 E and log10 r inside events: generated - real"
    ),
    "c2st_auc": Definition(
        "", "half", "AUC of a classifier that sees every muon of an event (DeepSets, median of three trainings)"
    ),
    "c2st_attention_auc": Definition("", "half", "AUC of a classifier that compares the muons of an event (attention)"),
}


Measure = Callable[[Float64, Float64], dict[str, Float64]]
"""Weights (B, E) of the events of both samples -> metrics by name, each (B,)."""
Progress = Callable[[float], None]
"""Takes the fraction that is done, 0 to 1."""

_MIN_SHOWERS = 100
"""Fewest showers for the classifiers."""
_ATTENTION_SHARE = 1 / 3
"""Share of the classifiers' time that the one with attention takes."""


def evaluate(
    real: Sample,
    generated: BundleArrays,
    *,
    independent: Sequence[Callable[[], BundleArrays]] = (),
    floors: Mapping[str, Floor] | None = None,
    pit_E: Float64,
    settings: EvaluationSettings,
    progress: Progress,
) -> MetricReport:
    """Return the report of all metrics. Event i of ``generated`` and ``independent`` has the primary of ``real``'s.

    ``independent``: redraws of the real events for the same primaries, each made when it is wanted.
    Without, real events are compared with those of other showers, and generated ones likewise, so that a perfect
    generator is at the floor: see docs/reference/metrics.md.
    ``floors``: those of a report on another generator for the same real events and settings; None: they are measured.
    ``pit_E``: u = P(N < n) + v P(N = n) of the model for each real count n, with v uniform in [0, 1).
    Real events of positive weight must be of two showers at least.
    """
    pit_E = pit_E[real.weights_E > 0]
    real, of_model, redraws, notes = _selected(real, generated, independent)
    weights = WeightSets(real.weights_E, real.shower_E, settings.bootstraps, settings.seed)
    paired = _paired(real, lambda: of_model)
    # Comparisons of real with real events are made one after the other: all may not fit in memory.
    if redraws:
        of_generated = [paired]
        of_real = [partial(_paired, real, redraw) for redraw in redraws]
    else:
        panel_halves, floor_halves = (
            halves(real.shower_E, splits, settings.seed) for splits in (PANEL_SPLITS, FLOOR_SPLITS)
        )
        both_ways = [half_E for first_E in panel_halves for half_E in (first_E, ~first_E)]
        of_generated = [_halved(real, of_model, half_E) for half_E in both_ways]
        of_real = [partial(_halved, real, real, first_E) for first_E in floor_halves]
    if floors is not None:
        of_real = []
    bins, scale = distances.ConditionBins(real.primary_E4), distances.CountScale(real)
    steps = len(of_generated) + 1 + len(of_real)
    steps += steps if settings.c2st_epochs else 0  # classifiers take about half of the time

    comparisons = []
    for compared in of_generated:
        comparisons.append(_measured(compared, compared.measures(bins, scale, settings.seed), weights))
        progress(len(comparisons) / steps)
    values = {name: np.mean([of[name] for of in comparisons], axis=0) for name in _common(comparisons)}
    # Chance does not increase these: all events can be compared.
    values |= _two_sided(_measured(paired, paired.moments(scale), weights))
    if floors is None:
        samples: list[dict[str, float]] = []
        for make in of_real:
            compared = make()
            one_set = _measured(compared, compared.measures(bins, scale, settings.seed), weights.sample())
            samples.append({name: float(values_B[0]) for name, values_B in one_set.items()})
            progress((len(comparisons) + 1 + len(samples)) / steps)
            del compared  # before the next one is made
        floors = floors_of(samples, averaged=1 if redraws else PANEL_SPLITS)
    of_real_events, floors = floors, dict(floors)
    if not redraws:
        # Halves differ in their primaries, which these must not measure. Their error is that of chance.
        for name, values_B in _two_sided(values).items():
            floors[name] = chance_floor(name, bootstrap_error(values_B[1:]))
    of_primary_E = bins.of(real.primary_E4)["conditional"]
    for name, bin_E in (("count_pit_ks", None), ("count_pit_by_primary_ks", of_primary_E)):
        uniformity = distances.UniformityKS(pit_E, bin_E)
        values[name] = np.concatenate([uniformity(weights_BE) for weights_BE in weights])
        null = [uniformity.null(weights.weight_E, weights_BE) for weights_BE in weights]
        floors[name] = null_floor(np.concatenate(null)[1:])
    if settings.c2st_epochs:
        aucs, deviations = classifier_metrics(paired, settings, weights, lambda part: progress((1 + part) / 2))
        values |= aucs
        floors |= {name: chance_floor(name, deviation) for name, deviation in deviations.items()}
    progress(1.0)
    wanted = [name for name in DEFINITIONS if settings.c2st_epochs or not name.startswith("c2st")]
    known = {name: values[name] for name in wanted if name in values and np.isfinite(values[name][0])}
    shifts = _shifts(real, of_model)
    if missing := ", ".join(name for name in wanted if name not in known):
        notes.append(f"too few events, muons or depths for {missing}")
    return MetricReport(
        metrics={
            name: Metric.of(
                DEFINITIONS[name],
                float(of[0]),
                bootstrap_error(of[1:]),
                floors.get(name, Floor()),
                shift=shifts.get(name, math.nan),
            )
            for name, of in known.items()
        },
        sizes={
            "events": len(real),
            "muons_real": int(real.bundles.counts_E.sum()),
            "muons_generated": int(of_model.bundles.counts_E.sum()),
            "redraws": len(redraws),
        },
        floor_kind="same primaries" if redraws else "disjoint showers",
        notes=tuple(notes),
        floors=of_real_events,
    )


def _shifts(real: Sample, generated: Sample) -> dict[str, float]:
    """Return the mean of each feature of generated events minus that of real ones, by the name of its distance."""
    shifts = {}
    for name in (*MUON_FEATURES, *BUNDLE_FEATURES):
        sides = [(of.weights_E, of.bundles.features[name]) for of in (real, generated)]
        if all(len(feature.values) for _, feature in sides):
            means = [np.average(feature.values, weights=weight_E[feature.events]) for weight_E, feature in sides]
            shifts[f"{name}_w1"] = float(means[1] - means[0])
    return shifts


def _selected(
    real: Sample, generated: BundleArrays, independent: Sequence[Callable[[], BundleArrays]]
) -> tuple[Sample, Sample, list[Callable[[], Sample]], list[str]]:
    """Return the arguments of evaluate without events of weight 0 and muons that are not finite, and notes about them.

    Redraws are made when they are wanted, since all may not fit in memory.
    """
    chosen_E = real.weights_E > 0
    notes = [] if chosen_E.all() else [f"{(~chosen_E).sum()} events of weight 0 were left out"]
    real = real.only(chosen_E)

    def cleaned(what: str, bundles: BundleArrays) -> Sample:
        finite, num_bad = bundles.finite()
        if num_bad:
            notes.append(f"{num_bad} {what} muons were not finite, and were left out")
        return real.with_bundles(finite)

    def redrawn(draw: Callable[[], BundleArrays]) -> Sample:
        return real.with_bundles(draw().only(chosen_E).finite()[0])

    of_real, of_generated = cleaned("real", real.bundles), cleaned("generated", generated.only(chosen_E))
    return of_real, of_generated, [partial(redrawn, draw) for draw in independent], notes


@dataclass(frozen=True)
class Comparison:
    """Real events ``a`` and the events ``b`` compared with them, each with its indices among all events.

    Distances of finite samples are never 0. So generated events are compared in the same way as real ones for the
    floor: both need as many events, and primaries that differ as much.
    """

    a: Sample
    b: Sample
    chosen_a_E: Bool
    chosen_b_E: Bool

    def measures(self, bins: distances.ConditionBins, scale: distances.CountScale, seed: int) -> list[Measure]:
        """Return all metrics except the classifiers. Sorts the samples, once."""
        both = self.a, self.b
        features: dict[str, list[tuple[Float64, Int64]]] = {
            name: [sample.bundles.features[name] for sample in both] for name in (*MUON_FEATURES, *BUNDLE_FEATURES)
        }
        features["decoherence_m"] = [
            distances.pair_distances(sample.bundles, numpy_stream(purpose, seed))
            for sample, purpose in zip(both, (MuonPurpose.PAIRS_REAL, MuonPurpose.PAIRS_GENERATED), strict=True)
        ]
        compared = {}
        for name, sides in features.items():
            a, b = (
                distances.Values(*of, np.zeros(len(sample), np.int64)) for of, sample in zip(sides, both, strict=True)
            )
            if len(a.values) and len(b.values):
                compared[f"{name}_w1"] = distances.BinnedWasserstein(a, b)
        compared |= distances.conditional_distances(*both, bins)
        return [*self.moments(scale), lambda *weights: {name: of(*weights) for name, of in compared.items()}]

    def moments(self, scale: distances.CountScale) -> list[Measure]:
        """Return the fast metrics, which include all two-sided ones (differences and ratios)."""
        a, b = self.a.bundles, self.b.bundles
        return [
            distances.CountMetrics(a.counts_E, b.counts_E),
            distances.IntraEvent(a, b),
            distances.TailMetrics(a, b),
            distances.EqualPrimaries(self.a, self.b, scale),
        ]

    def weights(self, weights_BE: Float64) -> tuple[Float64, Float64]:
        """Return the weights of the events of both samples, from those of all events."""
        return weights_BE[:, self.chosen_a_E], weights_BE[:, self.chosen_b_E]


def _paired(real: Sample, make: Callable[[], Sample]) -> Comparison:
    """Return the comparison of all real events with others for the same primaries."""
    all_E = np.ones(len(real), np.bool_)
    return Comparison(real, make(), all_E, all_E)


def _halved(real: Sample, other: Sample, first_E: Bool) -> Comparison:
    """Return the comparison of one half of the real events with ``other`` ones for the primaries of the other half."""
    return Comparison(real.only(first_E), other.only(~first_E), first_E, ~first_E)


def _two_sided(values: Mapping[str, Float64]) -> dict[str, Float64]:
    """Return two-sided metrics: those that may be off on either side of the best value."""
    return {name: values_B for name, values_B in values.items() if DEFINITIONS[name].better in TARGETS}


def _measured(compared: Comparison, measures: Sequence[Measure], weights: WeightSets) -> dict[str, Float64]:
    """Return the metrics of a comparison, one number for each set of weights."""
    pieces: dict[str, list[Float64]] = {}
    for weights_BE in weights:
        both = compared.weights(weights_BE)
        for measure in measures:
            for name, values_B in measure(*both).items():
                pieces.setdefault(name, []).append(values_B)
    return {name: np.concatenate(values) for name, values in pieces.items()}


def _common(comparisons: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names that all comparisons have."""
    return [name for name in comparisons[0] if all(name in values for values in comparisons)]


def chance_floor(name: str, deviation: float) -> Floor:
    """Return the floor of a two-sided metric that is off by chance alone, with this standard deviation."""
    return Floor(TARGETS[DEFINITIONS[name].better], 0.0, deviation) if math.isfinite(deviation) else Floor()


def null_floor(values: Float64) -> Floor:
    """Return the floor from independent values without a difference. Two at least, else nothing is known."""
    if len(values) < 2:
        return Floor()
    spread = float(values.std(ddof=1))
    return Floor(float(values.mean()), spread / math.sqrt(len(values)), spread)


def floors_of(comparisons: Sequence[Mapping[str, float]], averaged: int) -> dict[str, Floor]:
    """Return floors by name from comparisons of real events with real ones; names without a number in all are left out.

    Mean over the comparisons, also of two-sided metrics: redraws share the real sample, and so does a perfect
    generator, which is where they are and not at the best value. ``averaged``: number of independent comparisons
    whose mean is the value of the generator.
    """
    floors = {}
    for name in _common(comparisons):
        values = np.array([compared[name] for compared in comparisons])
        if not np.isfinite(values).all():
            continue
        spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        floors[name] = Floor(float(values.mean()), spread / math.sqrt(len(values)), spread / math.sqrt(averaged))
    return floors


def classifier_metrics(
    paired: Comparison, settings: EvaluationSettings, weights: WeightSets, progress: Progress
) -> tuple[dict[str, Float64], dict[str, float]]:
    """Return AUCs for each set of weights, and their deviations; none with too few showers, or a side without muons.

    A deviation is the standard deviation from 1/2 for two samples that are alike, which needs no training.
    """
    # Imported here: torch takes a second to import, and no other metric needs it.
    from workloads.muons.metrics.two_sample import attention_test, set_test

    a, b = paired.a, paired.b
    if len(np.unique(a.shower_E)) < _MIN_SHOWERS or not (len(a.bundles.filled_F) and len(b.bundles.filled_F)):
        return {}, {}
    of_sets = 1 - _ATTENTION_SHARE
    tests = {
        "c2st_auc": set_test(a, b, settings, lambda part: progress(part * of_sets)),
        "c2st_attention_auc": attention_test(a, b, settings, lambda part: progress(of_sets + part * _ATTENTION_SHARE)),
    }
    aucs = {
        name: np.concatenate([test(*paired.weights(weights_BE)) for weights_BE in weights])
        for name, test in tests.items()
    }
    return aucs, {name: test.chance(a, b) for name, test in tests.items()}
