"""All metrics of generated events, with errors and floors.

B sets of weights, E events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from workloads.base.report.metric import TARGETS, Floor, Metric
from workloads.base.report.outcome import MetricReport
from workloads.muons.metrics.bootstrap import WeightSets
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.calibration import UniformityKS
from workloads.muons.metrics.comparison import Comparison, Measure
from workloads.muons.metrics.conditional import ConditionBins
from workloads.muons.metrics.definitions import DEFINITIONS
from workloads.muons.metrics.design import design
from workloads.muons.metrics.floors import chance_floor, floors_of, null_floor, without_spread
from workloads.muons.metrics.prepare import Prepared, prepare
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings

Progress = Callable[[str, float], None]
Step = Callable[[float], None]
"""Callback with the fraction of one step that is done, 0 to 1."""
_PIT = "count_pit_ks"


def evaluate(
    real: Sample,
    generated: BundleArrays,
    *,
    independent: Sequence[Callable[[], BundleArrays]] = (),
    floors: Mapping[str, Floor] | None = None,
    pit_E: Float64 | None,
    settings: EvaluationSettings,
    progress: Progress,
) -> MetricReport:
    """Report of all metrics. Event i of ``generated`` and of each of ``independent`` has the primary of ``real``'s.

    ``independent``: redraws of the real events for the same primaries, REDRAWS or more, each made when it is wanted.
    Without, real events are compared with those of other showers, and generated ones likewise, so that a perfect
    generator is at the floor: see docs/reference/metrics.md.
    ``floors``: those of a report on another generator for the same real events and settings; None: they are measured.
    ``pit_E``: u = P(N < n) + v P(N = n) of the model for each real count n, with v uniform in [0, 1).
    ``progress``: called with the name of the present step and the fraction of all that is done.

    Raises ValueError if lengths differ, weights are negative, or there are fewer than two showers.
    """
    given = prepare(real, generated, independent, pit_E, settings)
    weights = WeightSets(given.real.weights_E, given.real.shower_E, settings.bootstraps, settings.seed)
    plan = design(given, settings)
    bins = ConditionBins(given.real.primary_E4)
    share = 0.5 if settings.c2st else 1.0

    *steps, last = _steps(progress, "distances", 0.0, 0.7 * share, len(plan.of_generated) + 1)
    found = _mean(
        [
            _measured(one, one.measures(bins, settings.seed), weights, step)
            for one, step in zip(plan.of_generated, steps, strict=True)
        ]
    )
    # Chance does not increase these: all events can be compared.
    found |= _two_sided(_measured(plan.paired, plan.paired.moments(), weights, last))
    if floors is None:
        steps = _steps(progress, "distances between real and real", 0.7 * share, share, len(plan.of_real))
        of_real = zip(plan.of_real, steps, strict=True)
        floors = floors_of(
            [_of_real(make(), bins, weights, settings.seed, step) for make, step in of_real], plan.averaged
        )
    of_real_events, floors = floors, dict(floors)
    if not plan.same_primaries:
        # Halves differ in their primaries, which these must not measure. Their error is that of chance.
        floors |= {name: chance_floor(name, _error(values_B)) for name, values_B in _two_sided(found).items()}
        floors |= without_spread(floors)
    if given.pit_E is not None:
        uniformity = UniformityKS(given.pit_E)
        found[_PIT] = np.concatenate([uniformity(weights_BE) for weights_BE in weights])
        null = [uniformity.null(weights.weight_E, weights_BE) for weights_BE in weights]
        floors[_PIT] = null_floor(np.concatenate(null)[1:])
    if settings.c2st:
        # Imported here: torch takes a second to import, and nothing else needs it.
        from workloads.muons.metrics.two_sample.classifiers import classifier_metrics

        (classifying,) = _steps(progress, "classifiers", share, 1.0, 1)
        aucs, chance = classifier_metrics(plan.paired, settings, weights, classifying)
        found |= aucs
        floors |= {name: chance_floor(name, deviation) for name, deviation in chance.items()}
    progress("done", 1.0)
    return replace(_report(given, found, floors, settings), floors=of_real_events)


def _steps(progress: Progress, what: str, begin: float, end: float, number: int) -> list[Step]:
    """Callbacks of ``number`` equal steps between the fractions ``begin`` and ``end`` of the whole progress."""

    def step(first: float) -> Step:
        return lambda part: progress(what, first + part * (end - begin) / number)

    return [step(begin + index * (end - begin) / number) for index in range(number)]


def _two_sided(found: Mapping[str, Float64]) -> dict[str, Float64]:
    """Two-sided metrics: those that may be off on either side of the best value."""
    return {name: values_B for name, values_B in found.items() if DEFINITIONS[name].better in TARGETS}


def _measured(one: Comparison, measures: Sequence[Measure], weights: WeightSets, step: Step) -> dict[str, Float64]:
    """Metrics of a comparison, one number for each set of weights."""
    found: dict[str, list[Float64]] = {}
    num_done = 0
    for weights_BE in weights:
        both = one.weights(weights_BE)
        for measure in measures:
            step(num_done / (len(weights) * len(measures)))
            for name, values_B in measure(*both).items():
                found.setdefault(name, []).append(values_B)
            num_done += len(weights_BE)
    return {name: np.concatenate(values) for name, values in found.items()}


def _of_real(one: Comparison, bins: ConditionBins, weights: WeightSets, seed: int, step: Step) -> dict[str, float]:
    """Metrics of a comparison of real events with real ones, without errors."""
    found = _measured(one, one.measures(bins, seed), weights.sample(), step)
    return {name: float(values_B[0]) for name, values_B in found.items()}


def _mean(told: Sequence[Mapping[str, Float64]]) -> dict[str, Float64]:
    """Mean over comparisons; names that are not in all are left out."""
    names = [name for name in told[0] if all(name in one for one in told)]
    return {name: np.mean([one[name] for one in told], axis=0) for name in names}


def _report(
    given: Prepared, found: Mapping[str, Float64], floors: Mapping[str, Floor], settings: EvaluationSettings
) -> MetricReport:
    wanted = [
        name
        for name in DEFINITIONS
        if (settings.c2st or not name.startswith("c2st")) and (given.pit_E is not None or name != _PIT)
    ]
    told = [name for name in wanted if name in found and np.isfinite(found[name][0])]
    missing = ", ".join(name for name in wanted if name not in told)
    return MetricReport(
        metrics={name: _metric(name, found[name], floors.get(name, Floor())) for name in told},
        sizes={
            "events": len(given.real),
            "muons_real": int(given.real.bundles.counts_E.sum()),
            "muons_generated": int(given.generated.bundles.counts_E.sum()),
        },
        floor_kind="same primaries" if given.independent else "disjoint showers",
        notes=(*given.notes, *([f"too few events or muons for {missing}"] if missing else [])),
    )


def _metric(name: str, values_B: Float64, floor: Floor) -> Metric:
    """Metric from the value of the sample and those of its bootstraps."""
    return Metric.of(DEFINITIONS[name], float(values_B[0]), _error(values_B), floor)


def _error(values_B: Float64) -> float:
    """Standard deviation over the bootstraps with finite values; NaN if these are fewer than two."""
    again = values_B[1:][np.isfinite(values_B[1:])]
    return float(again.std(ddof=1)) if len(again) > 1 else float("nan")
