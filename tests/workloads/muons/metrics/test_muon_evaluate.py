"""A report of a perfect generator, of generators with one thing wrong, and the floors of both."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
from simulated import (
    drawn_again,
    energies_swapped_between_muons,
    mean_counts,
    muons_swapped_between_events,
    real_sample,
    with_counts,
)

from workloads.base.report.metric import TARGETS, Floor, Metric, verdict
from workloads.base.report.page import MetricReport
from workloads.muons.metrics.bundles import BundleArrays, EvaluationSettings, Float64, Int64, Sample
from workloads.muons.metrics.evaluate import DEFINITIONS, REDRAWS, evaluate, floors_of, null_floor

NO_CLASSIFIERS = EvaluationSettings(bootstraps=10, c2st_epochs=0)
VALUES_ONLY = EvaluationSettings(bootstraps=0, c2st_epochs=0)
FLOOR_KINDS = pytest.mark.parametrize("floor_kind", ["same primaries", "disjoint showers"])
RARE = ("count_depth_correlation_difference", "energy_above_30_tev_ratio", "radius_above_100_m_ratio")
"""Metrics of showers with several rows, and of fewer than ten muons in 5000 events."""


class Events(NamedTuple):
    """Real events, those of a perfect generator, and others for the floor."""

    real: Sample
    good: BundleArrays
    independent: BundleArrays


@cache
def events(number: int) -> Events:
    real = real_sample(number)
    return Events(real, drawn_again(real, 2), drawn_again(real, 3))


def evaluated(
    real: Sample,
    generated: BundleArrays,
    *redraws: Callable[[], BundleArrays],
    pit_E: Float64 | None = None,
    settings: EvaluationSettings = NO_CLASSIFIERS,
    floors: Mapping[str, Floor] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> MetricReport:
    pit_E = np.linspace(0, 1, len(real)) if pit_E is None else pit_E
    options = {"pit_E": pit_E, "settings": settings, "floors": floors, "progress": progress}
    return evaluate(real, generated, independent=redraws, **options)  # type: ignore[arg-type]


def off(metric: Metric, value: float) -> float:
    """How far a value is from the best one."""
    return abs(value - TARGETS.get(metric.better, 0.0))


def caught(report: MetricReport) -> set[str]:
    """Metrics that are far above what a perfect generator has."""
    return {
        name
        for name, metric in report.metrics.items()
        if off(metric, metric.value) > off(metric, metric.floor) + 5 * metric.error
    }


@cache
def report_of_a_perfect_generator(floor_kind: str) -> MetricReport:
    real, good, independent = events(5_000)
    redraws = [lambda: independent] if floor_kind == "same primaries" else []
    return evaluated(real, good, *redraws, pit_E=pit("perfect"))


def pit(model: str) -> Float64:
    """Of a model whose counts are right, or always the same for a primary: P(N < n) + v P(N = n)."""
    real = events(5_000).real
    uniform_E = np.random.default_rng(0).random(len(real))
    if model != "deterministic counts":
        return uniform_E
    difference_E = np.sign(real.bundles.counts_E - deterministic_counts(real))
    return np.where(difference_E == 0, uniform_E, (difference_E > 0).astype(np.float64))


def deterministic_counts(real: Sample) -> Int64:
    return np.round(mean_counts(real)).astype(np.int64)


@pytest.mark.slow
@FLOOR_KINDS
def test_every_metric_is_told_with_its_error_and_its_floor(floor_kind: str) -> None:
    report = report_of_a_perfect_generator(floor_kind)
    assert list(report.metrics) == [name for name in DEFINITIONS if not name.startswith("c2st") and name not in RARE]
    for name, metric in report.metrics.items():
        assert metric.error > 0 or name == "energy_below_cut_share", name
        assert np.isfinite(metric.floor), name
        assert metric.meaning, name
    assert not caught(report)
    assert report.floor_kind == floor_kind
    assert report.notes == (f"too few events, muons or depths for {', '.join(RARE)}",)


WRONG: dict[str, Callable[[BundleArrays], BundleArrays]] = {
    "muons swapped between events": lambda good: muons_swapped_between_events(good, 5),
    "deterministic counts": lambda good: with_counts(good, deterministic_counts(events(5_000).real)),
    "E and r independent": lambda good: energies_swapped_between_muons(good, 5),
    "clipped energies": lambda good: replace(good, energy_gev_P=np.minimum(good.energy_gev_P, 9e3)),
}
CAUGHT_BY = {
    "muons swapped between events": {
        *("conditional_log10_energy_w1", "conditional_zenith_log10_energy_w1", "conditional_depth_log10_radius_w1"),
        *("conditional_log10_bundle_energy_w1", "mean_log10_radius_variance_ratio_at_least_20"),
    },
    "deterministic counts": {"count_pit_ks", "log10_count_w1", "conditional_log10_count_w1"},
    "E and r independent": {"energy_radius_correlation_within_events_difference", "weighted_radius_m_w1"},
    "clipped energies": {"energy_above_10_tev_ratio"},
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_generator_is_caught_by_the_metrics_named_for_it(wrong: str) -> None:
    real, good, independent = events(5_000)
    floors = report_of_a_perfect_generator("same primaries").floors
    found = caught(evaluated(real, WRONG[wrong](good), lambda: independent, pit_E=pit(wrong), floors=floors))
    assert found >= CAUGHT_BY[wrong], CAUGHT_BY[wrong] - found
    if wrong != "deterministic counts":  # every muon is there: one by one, they are right
        assert not found & {"count_tv", "log10_energy_w1", "log10_radius_w1", "radius_m_w1", "x_m_w1", "count_pit_ks"}


@pytest.mark.slow
def test_classifiers_catch_what_is_wrong_inside_events_and_their_progress_is_told() -> None:
    real, good, _ = events(1_500)
    done: list[float] = []
    settings = EvaluationSettings(bootstraps=4, c2st_epochs=6)
    wrong = energies_swapped_between_muons(good, 5)
    report = evaluated(real, wrong, floors={}, settings=settings, progress=done.append)
    assert "c2st_auc" in caught(report)
    assert report.metrics["c2st_attention_auc"].floor == 0.5
    assert done == sorted(done)
    assert done[-1] == 1.0


@pytest.mark.slow
def test_differences_and_ratios_are_the_same_with_either_kind_of_floor() -> None:
    same, disjoint = (report_of_a_perfect_generator(kind).metrics for kind in ("same primaries", "disjoint showers"))
    for name in (name for name in same if same[name].better in TARGETS):
        assert disjoint[name].value == same[name].value, name
        assert disjoint[name].error == same[name].error, name
        assert disjoint[name].floor == TARGETS[disjoint[name].better], name
        assert disjoint[name].floor_spread == pytest.approx(disjoint[name].error), name
    assert disjoint["log10_energy_w1"].floor > same["log10_energy_w1"].floor, "halves, with other primaries"


def test_the_error_is_the_spread_of_the_metric_over_samples() -> None:
    found, errors = [], []
    settings = EvaluationSettings(bootstraps=20, c2st_epochs=0)
    for seed in range(40):
        real = real_sample(150, seed=100 + seed)
        redraw = partial(drawn_again, real, 300)
        metrics = evaluated(real, drawn_again(real, 200 + seed), redraw, settings=settings).metrics
        found.append(metrics["count_empty_difference"].value)
        errors.append(metrics["count_empty_difference"].error)
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.4)


def test_muons_that_are_not_finite_and_events_without_weight_are_left_out_and_noted() -> None:
    real, good, _ = events(500)
    bad = replace(good, energy_gev_P=np.where(np.arange(len(good.energy_gev_P)) < 7, np.nan, good.energy_gev_P))
    report = evaluated(real, bad, settings=VALUES_ONLY)
    assert report.notes[0] == "7 generated muons were not finite, and were left out"
    assert report.sizes["muons_generated"] == len(good.energy_gev_P) - 7
    odd_E = np.arange(len(real)) % 2 > 0
    half = evaluated(replace(real, weight_E=odd_E.astype(np.float64)), good, settings=VALUES_ONLY)
    assert half.sizes["events"] == 250
    assert half.notes[0] == "250 events of weight 0 were left out"
    assert half.metrics.keys() == evaluated(real.only(odd_E), good.only(odd_E), settings=VALUES_ONLY).metrics.keys()
    times_E = 1.0 + 2 * odd_E
    mean = evaluated(replace(real, weight_E=times_E), good, settings=VALUES_ONLY).metrics["count_mean_ratio"].value
    ratio = np.average(good.counts_E, weights=times_E) / np.average(real.bundles.counts_E, weights=times_E)
    assert mean == pytest.approx(ratio)


@pytest.mark.slow
def test_few_showers_with_muons_among_many_are_told_what_can_be_told() -> None:
    """Twenty of a hundred: some parts of the sample, and most bootstraps of these, hold none of them."""
    shower_E = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 20))

    def emptied(bundles: BundleArrays) -> BundleArrays:
        kept_P = np.repeat(shower_E < 20, bundles.counts_E)
        columns = (bundles.energy_gev_P, bundles.x_m_P, bundles.y_m_P)
        return BundleArrays(np.where(shower_E < 20, bundles.counts_E, 0), *(column[kept_P] for column in columns))

    of_all, good, independent = events(2_000)
    real = Sample(of_all.primary_E4, shower_E, emptied(of_all.bundles))
    assert (real.bundles.counts_E > 0).sum() > 200
    for redraws in ([lambda: emptied(independent)], []):
        settings = EvaluationSettings(bootstraps=30, c2st_epochs=0)
        report = evaluated(real, emptied(good), *redraws, settings=settings)
        assert np.isfinite(report.metrics["log10_energy_w1"].error)


@FLOOR_KINDS
def test_floors_that_were_measured_with_another_generator_are_taken(floor_kind: str) -> None:
    real, good, independent = events(500)
    draws: list[str] = []

    def draw() -> BundleArrays:
        draws.append("drawn")
        return independent

    def report(generated: BundleArrays, other: MetricReport | None) -> MetricReport:
        redraws = (draw, draw) if floor_kind == "same primaries" else ()
        settings = replace(NO_CLASSIFIERS, bootstraps=2)
        return evaluated(real, generated, *redraws, settings=settings, floors=other.floors if other else None)

    other = report(BundleArrays(np.zeros(len(real), np.int64), *[np.zeros(0)] * 3), None)
    drawn = len(draws)
    assert "log10_energy_w1" not in other.metrics, "nor has it a metric of any muon"
    assert report(good, other) == report(good, None)
    assert len(draws) == 2 * drawn == (4 if floor_kind == "same primaries" else 0)


@pytest.mark.parametrize(
    ("name", "values"), [("count_tv", [0.01, 0.02, 0.03, 0.06]), ("count_mean_ratio", [0.97, 1.04, 0.99, 1.02])]
)
def test_a_floor_is_the_mean_of_all_draws_with_its_error(name: str, values: list[float]) -> None:
    """Also of a ratio, whose best value is 1: all draws share the real sample."""
    found = floors_of([{name: values[0], "x_m_w1": 0.2}, *({name: value} for value in values[1:])], averaged=1)
    assert set(found) == {name}, "what one comparison lacks has no floor"
    assert found[name].value == pytest.approx(np.mean(values))
    assert found[name].spread == pytest.approx(np.std(values, ddof=1))
    assert found[name].error == pytest.approx(found[name].spread / 2)
    (of_one,) = floors_of([{name: 0.1}], averaged=1).values()
    assert of_one.value == 0.1
    assert math.isnan(of_one.spread)
    assert math.isnan(null_floor(np.array([0.1])).value)


@pytest.mark.slow
@FLOOR_KINDS
def test_perfect_generators_are_at_the_floor_about_95_of_100_times(floor_kind: str) -> None:
    """Each with real events and redraws of its own: the floor, its error and the spread are all known from 8 draws."""
    trials = 8
    verdicts: dict[str, list[str]] = {}
    for trial in range(trials):
        real = real_sample(700, seed=500 + trial)
        redraws = [partial(drawn_again, real, 20_000 + 100 * trial + draw) for draw in range(REDRAWS)]
        redraws = redraws if floor_kind == "same primaries" else []
        pit_E = np.random.default_rng(trial).random(len(real))
        report = evaluated(real, drawn_again(real, 10_000 + trial), *redraws, pit_E=pit_E)
        for name, metric in report.metrics.items():
            verdicts.setdefault(name, []).append(verdict(metric))
    verdicts = {name: found for name, found in verdicts.items() if len(found) == trials and "no floor" not in found}
    assert len(verdicts) > 24, "all that 700 events are enough for, each time"
    at_floor = {name: found.count("at floor") for name, found in verdicts.items()}
    assert 0.90 < sum(at_floor.values()) / (trials * len(verdicts)) < 0.98
    # By chance 4 or fewer of 8 are as rare as 1 of 2,500.
    assert {name: number for name, number in at_floor.items() if number < 5} == {}


def test_redraws_are_made_one_after_the_other_and_kept_no_longer_than_needed() -> None:
    real = real_sample(500)
    made: list[weakref.ref[BundleArrays]] = []

    def redraw(draw: int) -> BundleArrays:
        assert [one() for one in made] == [None] * len(made)
        found = drawn_again(real, 10 + draw)
        made.append(weakref.ref(found))
        return found

    evaluated(real, drawn_again(real, 2), *(partial(redraw, draw) for draw in range(3)), settings=VALUES_ONLY)
    assert len(made) == 3
