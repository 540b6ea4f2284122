"""Every metric of generated events, beside its error and its floor.

B sets of weights, E events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from services.physics.bootstrap import resampled
from services.physics.bundles import Bundles, Float64
from services.physics.calibration import UniformityKS, expected_ks
from services.physics.comparison import Comparison, Measure
from services.physics.conditional import ConditionBins
from services.physics.definitions import DEFINITIONS, TARGETS
from services.physics.metrics import PANEL_SPLITS
from services.physics.random_streams import Purpose, stream
from services.physics.report import Metric, Report
from services.physics.sample import Sample
from services.physics.settings import EvaluationSettings
from services.physics.splits import at_most, halves

Progress = Callable[[str, float], None]
_WEIGHTS_AT_A_TIME = 1 << 22
_C2ST = ("c2st_summary_auc", "c2st_auc")
_C2ST_MIN_SHOWERS = 100
_PIT = "count_pit_ks"


def evaluate(
    real: Sample,
    generated: Bundles,
    *,
    independent: Bundles | None,
    pit_E: Float64 | None,
    settings: EvaluationSettings,
    progress: Progress,
) -> Report:
    """Event i of ``generated`` and of ``independent`` has the primary of event i of ``real``.

    ``independent``: real events drawn again for the same primaries. Without, real events are compared with those of
    other showers, and generated ones likewise, so that a perfect generator is at the floor: see docs/metrics.md.
    ``pit_E``: u = P(N < n) + v P(N = n) of the model for each real count n, with v uniform in [0, 1).
    ``progress``: what is being done, and the part of all that is done.

    Raises ValueError if there are fewer than two showers, or if lengths differ.
    """
    real, others, pit_E, notes = _prepared(real, [generated, independent], pit_E, settings)
    generated, again = others[0], others[1] if independent is not None else None
    bins = ConditionBins(real.primary_E4)
    comparisons, floors = _comparisons(real, generated, again, settings)
    weights = _Weights(real, settings)
    found: dict[str, Float64] = {}
    at_floor: dict[str, float] = {}

    def measure(
        these: Sequence[Comparison], rows: int, begin: float, end: float, what: str
    ) -> list[dict[str, Float64]]:
        """Metrics of each comparison, (rows,) each."""
        told = []
        for number, one in enumerate(these):
            share = (end - begin) / len(these)
            first = begin + number * share

            def done(part: float, first: float = first, share: float = share) -> None:
                progress(what, first + part * share)

            done(0.0)
            told.append(_measured(one, one.measures(bins, settings.seed), weights, rows, done))
        return told

    share = 0.5 if settings.c2st else 1.0
    found |= _mean(measure(comparisons, 1 + settings.bootstraps, 0.0, 0.7 * share, "distances"))
    at_floor |= _floor(measure(floors, 1, 0.7 * share, share, "distances between real and real"))
    if pit_E is not None:
        uniformity = UniformityKS(pit_E)
        found[_PIT] = np.concatenate([uniformity(rows_BE) for rows_BE in weights.chunks(1 + settings.bootstraps)])
        at_floor[_PIT] = expected_ks(real.weights_E)
    if settings.c2st and len(np.unique(real.shower_E)) >= _C2ST_MIN_SHOWERS:
        middle = (1.0 + share) / 2
        found |= _classified(comparisons[0], weights, 1 + settings.bootstraps, settings, progress, share, middle)
        at_floor |= _floor([_classified(floors[0], weights, 1, settings, progress, middle, 1.0)])
    progress("done", 1.0)
    wanted = [name for name in DEFINITIONS if _wanted(name, settings, pit_E is not None)]
    metrics = {name: _metric(name, found[name], at_floor) for name in wanted if _told(found, name)}
    if missing := [name for name in wanted if name not in metrics]:
        notes.append(f"too few events or muons for {', '.join(missing)}")
    return Report(
        metrics=metrics,
        num_events=len(real),
        num_muons_real=int(real.bundles.counts_E.sum()),
        num_muons_generated=int(generated.counts_E.sum()),
        floor_kind="disjoint showers" if again is None else "same primaries",
        notes=tuple(notes),
    )


def _prepared(
    real: Sample, others: Sequence[Bundles | None], pit_E: Float64 | None, settings: EvaluationSettings
) -> tuple[Sample, list[Bundles], Float64 | None, list[str]]:
    """What is looked at: not more events than wanted, only finite muons; and what the reader must know of it."""
    given = [one for one in others if one is not None]
    lengths = {len(real), *(len(one) for one in given), *([] if pit_E is None else [len(pit_E)])}
    if len(lengths) > 1:
        raise ValueError(f"numbers of events differ: {sorted(lengths)}")
    if not (np.isfinite(real.weights_E).all() and (real.weights_E >= 0).all()):
        raise ValueError("an event's weight is negative or not finite")
    notes = []
    chosen_E = at_most(real.shower_E, settings.max_events, stream(settings.seed, Purpose.EVENTS))
    if not chosen_E.all():
        notes.append(f"{chosen_E.sum()} of {len(chosen_E)} events were looked at, whole showers chosen at random")
    if not (real.weights_E > 0).all():
        chosen_E &= real.weights_E > 0
        notes.append("events of weight 0 were left out")
    if not chosen_E.all():
        real, given = real.only(chosen_E), [one.only(chosen_E) for one in given]
        pit_E = None if pit_E is None else pit_E[chosen_E]
    if len(np.unique(real.shower_E)) < 2:
        raise ValueError("fewer than two showers")
    cleaned = []
    for what, one in zip(("real", "generated", "independent real"), [real.bundles, *given], strict=False):
        finite, num_bad = one.finite()
        cleaned.append(finite)
        if num_bad:
            notes.append(f"{num_bad} {what} muons were not finite and were left out")
    return real.with_bundles(cleaned[0]), cleaned[1:], pit_E, notes


def _comparisons(
    real: Sample, generated: Bundles, independent: Bundles | None, settings: EvaluationSettings
) -> tuple[list[Comparison], list[Comparison]]:
    """Of generated with real events, and of real with real ones: as many events, and primaries as different."""
    if independent is not None:
        all_E = np.ones(len(real), np.bool_)
        pairs = [Comparison(real, real.with_bundles(one), all_E, all_E) for one in (generated, independent)]
        return [pairs[0]], [pairs[1]]
    fake = real.with_bundles(generated)
    comparisons = [
        Comparison(real.only(one), fake.only(~one), one, ~one)
        for first in halves(real.shower_E, PANEL_SPLITS, settings.seed)
        for one in (first, ~first)
    ]
    floors = [
        Comparison(real.only(first), real.only(~first), first, ~first)
        for first in halves(real.shower_E, settings.floor_splits, settings.seed)
    ]
    return comparisons, floors


class _Weights:
    """Event weights: first those of the sample, then those of bootstraps of its showers."""

    def __init__(self, real: Sample, settings: EvaluationSettings) -> None:
        self._weights_E = real.weights_E
        self._shower_E = real.shower_E
        self._seed = settings.seed

    def chunks(self, rows: int) -> Iterator[Float64]:
        """``rows`` sets of weights, some at a time: all may be more than fit. The same each time."""
        rng = stream(self._seed, Purpose.BOOTSTRAPS)
        most = max(_WEIGHTS_AT_A_TIME // len(self._weights_E), 1)
        yield self._weights_E[None]
        for first in range(1, rows, most):
            yield self._weights_E * resampled(self._shower_E, min(most, rows - first), rng)


def _measured(
    one: Comparison, measures: Sequence[Measure], weights: _Weights, rows: int, done: Callable[[float], None]
) -> dict[str, Float64]:
    """All metrics of a comparison, (rows,) each."""
    found: dict[str, list[Float64]] = {}
    finished = 0
    for weights_BE in weights.chunks(rows):
        weights_a_BE, weights_b_BE = one.weights(weights_BE)
        for measure in measures:
            for name, values_B in measure(weights_a_BE, weights_b_BE).items():
                found.setdefault(name, []).append(values_B)
            finished += len(weights_BE)
            done(finished / (rows * len(measures)))
    return {name: np.concatenate(values) for name, values in found.items()}


def _classified(
    one: Comparison,
    weights: _Weights,
    rows: int,
    settings: EvaluationSettings,
    progress: Progress,
    begin: float,
    end: float,
) -> dict[str, Float64]:
    """AUCs of the classifiers, (rows,) each; none without muons in one of the samples."""
    # Only now: torch takes a second to import, and the rest needs none of it.
    from services.physics.two_sample.classifier_test import set_test, summary_test

    if not (len(one.a.bundles.filled_F) and len(one.b.bundles.filled_F)):
        return {}
    found = {}
    middle = begin + 0.1 * (end - begin)
    for name, test, first, last in zip(_C2ST, (summary_test, set_test), (begin, middle), (middle, end), strict=True):

        def done(part: float, first: float = first, last: float = last) -> None:
            progress("classifiers", first + part * (last - first))

        done(0.0)
        tested = test(one.a, one.b, settings, done)
        found[name] = np.concatenate([tested(*one.weights(weights_BE)) for weights_BE in weights.chunks(rows)])
    return found


def _mean(told: Sequence[Mapping[str, Float64]]) -> dict[str, Float64]:
    """Over comparisons; names that are not in all are left out."""
    names = [name for name in told[0] if all(name in one for one in told)]
    return {name: np.mean([one[name] for one in told], axis=0) for name in names}


def _floor(told: Sequence[Mapping[str, Float64]]) -> dict[str, float]:
    """Mean over comparisons of real with real; where best is a number in between, how far they are off in the mean."""
    found = {}
    for name, values in ((name, np.array([one[name][0] for one in told])) for name in _mean(told)):
        target = TARGETS.get(DEFINITIONS[name].better)
        found[name] = float(values.mean() if target is None else target + np.sqrt(np.mean((values - target) ** 2)))
    return found


def _wanted(name: str, settings: EvaluationSettings, has_pit: bool) -> bool:
    return (settings.c2st or name not in _C2ST) and (has_pit or name != _PIT)


def _told(found: Mapping[str, Float64], name: str) -> bool:
    return name in found and bool(np.isfinite(found[name][0]))


def _metric(name: str, values_B: Float64, floors: Mapping[str, float]) -> Metric:
    """From the metric of the sample and those of its bootstraps."""
    definition = DEFINITIONS[name]
    again = values_B[1:][np.isfinite(values_B[1:])]
    return Metric(
        value=float(values_B[0]),
        error=float(again.std(ddof=1)) if len(again) > 1 else float("nan"),
        floor=floors.get(name, float("nan")),
        unit=definition.unit,
        better=definition.better,
        meaning=definition.meaning,
    )
