"""A report of a perfect generator, and of generators with one thing wrong that a named metric has to catch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from simulated import (
    drawn_again,
    energies_swapped_between_muons,
    mean_counts,
    muons_swapped_between_events,
    real_sample,
    repeated,
    with_counts,
)

from workloads.base.report.metric import TARGETS, Metric
from workloads.base.report.outcome import MetricReport
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.definitions import DEFINITIONS
from workloads.muons.metrics.evaluate import evaluate
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings

NO_CLASSIFIERS = EvaluationSettings(bootstraps=10, c2st=False, floor_splits=3)
WITH_CLASSIFIERS = EvaluationSettings(bootstraps=10, c2st_epochs=8)
VALUES_ONLY = EvaluationSettings(bootstraps=0, c2st=False)
REAL = real_sample(4_000)
GOOD = drawn_again(REAL, 2)
INDEPENDENT = drawn_again(REAL, 3)
RARE = ("energy_above_30_tev_ratio", "radius_above_100_m_ratio")
"""Metrics of fewer than ten muons in 5000 events."""
DETERMINISTIC_COUNTS_E = np.round(mean_counts(REAL)).astype(np.int64)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def evaluated(
    real: Sample,
    generated: BundleArrays,
    independent: BundleArrays | None = None,
    pit_E: Float64 | None = None,
    settings: EvaluationSettings = NO_CLASSIFIERS,
) -> MetricReport:
    return evaluate(
        real,
        generated,
        independent=() if independent is None else (lambda: independent,),
        pit_E=pit_E,
        settings=settings,
        progress=lambda what, part: None,
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("floor_kind", ["same primaries", "disjoint showers"])
def test_every_metric_is_told_with_its_error_and_its_floor(floor_kind: str) -> None:
    real = real_sample(5_000)
    independent = drawn_again(real, 3) if floor_kind == "same primaries" else None
    uniform_E = np.random.default_rng(0).random(len(real))
    report = evaluated(real, drawn_again(real, 2), independent, uniform_E)
    assert list(report.metrics) == [name for name in DEFINITIONS if not name.startswith("c2st") and name not in RARE]
    for name, metric in report.metrics.items():
        assert metric.error > 0 or name == "energy_below_cut_share", name
        assert np.isfinite(metric.floor), name
        assert metric.meaning, name
    assert not caught(report)
    assert report.floor_kind == floor_kind
    assert report.notes == (f"too few events or muons for {', '.join(RARE)}",)


def pit(model: str) -> Float64:
    """Of a model whose counts are right, or always the same for a primary: P(N < n) + v P(N = n)."""
    uniform_E = np.random.default_rng(0).random(len(REAL))
    if model != "deterministic counts":
        return uniform_E
    difference_E = np.sign(REAL.bundles.counts_E - DETERMINISTIC_COUNTS_E)
    return np.where(difference_E == 0, uniform_E, (difference_E > 0).astype(np.float64))


GENERATORS = {
    "perfect": GOOD,
    "muons swapped between events": muons_swapped_between_events(GOOD, 5),
    "deterministic counts": with_counts(GOOD, DETERMINISTIC_COUNTS_E),
    "E and r independent": energies_swapped_between_muons(GOOD, 5),
}
CAUGHT_BY = {
    "perfect": set(),
    "muons swapped between events": {
        *("conditional_log10_energy_w1", "conditional_zenith_log10_energy_w1", "conditional_depth_log10_radius_w1"),
        *("conditional_log10_bundle_energy_w1", "mean_log10_radius_variance_ratio_at_least_20", "c2st_auc"),
    },
    "deterministic counts": {"count_pit_ks", "log10_count_w1", "conditional_log10_count_w1", "c2st_auc"},
    "E and r independent": {
        *("energy_radius_correlation_difference", "energy_radius_correlation_within_events_difference"),
        *("weighted_radius_m_w1", "fpd", "c2st_auc", "c2st_summary_auc"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_what_is_wrong_with_a_generator_is_caught_by_the_metrics_named_for_it(generator: str) -> None:
    report = evaluated(REAL, GENERATORS[generator], INDEPENDENT, pit(generator), WITH_CLASSIFIERS)
    found = caught(report)
    if generator == "perfect":
        assert not found
    assert found >= CAUGHT_BY[generator], CAUGHT_BY[generator] - found
    if generator != "deterministic counts":  # every muon is there: one by one, they are right
        assert not found & {"count_tv", "log10_energy_w1", "log10_radius_w1", "radius_m_w1", "x_m_w1", "count_pit_ks"}


@pytest.mark.slow
def test_deterministic_counts_at_one_primary_have_the_wrong_fano_factor() -> None:
    """Among all primaries, the spread of the means hides it."""
    primary_E4 = np.repeat(REAL.primary_E4[[np.argmin(np.abs(mean_counts(REAL) - 6.0))]], 2_000, axis=0)
    place = Sample(primary_E4, np.arange(2_000), BundleArrays(np.zeros(2_000, np.int64), *[np.zeros(0)] * 3))
    drawn = [drawn_again(place, seed) for seed in (1, 2, 3)]
    real = place.with_bundles(drawn[0])
    good = evaluated(real, drawn[1], drawn[2])
    wrong = evaluated(real, with_counts(drawn[1], np.round(mean_counts(place)).astype(np.int64)), drawn[2])
    assert not caught(good) & {"count_tv", "count_fano_ratio"}
    assert caught(wrong) >= {"count_tv", "count_fano_ratio"}


@pytest.mark.slow
def test_differences_and_ratios_are_the_same_with_either_kind_of_floor() -> None:
    same = evaluated(REAL, GOOD, INDEPENDENT).metrics
    disjoint = evaluated(REAL, GOOD).metrics
    for name in (name for name in same if same[name].better in TARGETS):
        assert disjoint[name].value == same[name].value, name
        assert disjoint[name].error == same[name].error, name
        assert disjoint[name].floor == TARGETS[disjoint[name].better], name
        assert disjoint[name].floor_spread == pytest.approx(disjoint[name].error), name
    assert disjoint["log10_energy_w1"].floor > same["log10_energy_w1"].floor, "halves, with other primaries"


@pytest.mark.slow
def test_neither_the_order_of_events_nor_that_of_muons_matters() -> None:
    order = np.random.default_rng(1).permutation(len(REAL))
    shuffled = [repeated(one, order) for one in (REAL.bundles, GOOD, INDEPENDENT)]
    turned = [muons_in_another_order(one) for one in shuffled]
    real = Sample(REAL.primary_E4[order], REAL.shower_E[order], turned[0])
    uniform_E = pit("perfect")
    before = evaluated(REAL, GOOD, INDEPENDENT, uniform_E, VALUES_ONLY).metrics
    after = evaluated(real, turned[1], turned[2], uniform_E[order], VALUES_ONLY).metrics
    assert before.keys() == after.keys()
    for name, metric in before.items():
        chosen_at_random = name == "decoherence_m_w1"  # which pairs of a large event
        assert after[name].value == pytest.approx(metric.value, rel=0.5 if chosen_at_random else 1e-6, abs=1e-9), name


def muons_in_another_order(bundles: BundleArrays) -> BundleArrays:
    order = np.lexsort((np.random.default_rng(1).random(len(bundles.event_P)), bundles.event_P))
    columns = (bundles.energy_gev_P, bundles.x_m_P, bundles.y_m_P)
    return BundleArrays(bundles.counts_E, *(column[order] for column in columns))


@pytest.mark.slow
def test_an_event_of_weight_three_is_an_event_three_times() -> None:
    times_E = np.random.default_rng(2).integers(1, 4, len(REAL))
    order = np.repeat(np.arange(len(REAL)), times_E)
    weighted = replace(REAL, weight_E=times_E.astype(np.float64))
    many = Sample(REAL.primary_E4[order], REAL.shower_E[order], repeated(REAL.bundles, order))
    uniform_E = pit("perfect")
    one = evaluated(weighted, GOOD, INDEPENDENT, uniform_E, VALUES_ONLY).metrics
    generated, independent = repeated(GOOD, order), repeated(INDEPENDENT, order)
    other = evaluated(many, generated, independent, uniform_E[order], VALUES_ONLY).metrics
    # Edges of bins are quantiles of events; pairs are drawn anew; fpd and kpd ask how many events there really are.
    for name in (name for name in one if not name.startswith(("conditional", "decoherence", "fpd", "kpd"))):
        assert one[name].value == pytest.approx(other[name].value, rel=1e-6, abs=1e-9), name
    assert (
        one["count_mean_ratio"].value
        != evaluated(REAL, GOOD, INDEPENDENT, settings=VALUES_ONLY).metrics["count_mean_ratio"].value
    )


def test_the_error_is_the_spread_of_the_metric_over_samples() -> None:
    found, errors = [], []
    settings = EvaluationSettings(bootstraps=20, c2st=False)
    for seed in range(40):
        real = real_sample(150, seed=100 + seed)
        metrics = evaluated(real, drawn_again(real, 200 + seed), drawn_again(real, 300), settings=settings).metrics
        found.append(metrics["count_empty_difference"].value)
        errors.append(metrics["count_empty_difference"].error)
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.4)


@pytest.mark.slow
def test_events_of_one_shower_make_the_errors_larger() -> None:
    alike = np.repeat(np.arange(500), 4)
    settings = EvaluationSettings(bootstraps=50, c2st=False)
    few = Sample(REAL.primary_E4[alike], alike, repeated(REAL.bundles, alike))
    pretended = replace(few, shower_E=np.arange(len(few)))
    generated, independent = repeated(GOOD, alike), repeated(INDEPENDENT, alike)
    errors = [
        evaluated(one, generated, independent, None, settings).metrics["count_mean_ratio"].error
        for one in (few, pretended)
    ]
    assert errors[0] == pytest.approx(2 * errors[1], rel=0.5)


@pytest.mark.slow
def test_muons_that_are_not_finite_and_events_beyond_the_limit_are_told() -> None:
    settings = replace(VALUES_ONLY, floor_splits=1)
    bad = replace(GOOD, energy_gev_P=np.where(np.arange(len(GOOD.energy_gev_P)) < 7, np.nan, GOOD.energy_gev_P))
    report = evaluated(REAL, bad, settings=settings)
    assert report.notes[0] == "7 generated muons were not finite, and were left out"
    assert report.sizes["muons_generated"] == len(GOOD.energy_gev_P) - 7
    few = evaluated(REAL, GOOD, settings=replace(settings, max_events=500))
    assert few.sizes["events"] == 500
    assert few.notes[0] == "500 of 4000 events were looked at, whole showers chosen at random"
    weight_E = (np.arange(len(REAL)) % 2).astype(np.float64)
    half = evaluated(replace(REAL, weight_E=weight_E), GOOD, settings=settings)
    assert half.sizes["events"] == 2_000
    assert half.notes[0] == "2000 events of weight 0 were left out"


@pytest.mark.slow
def test_a_generator_without_muons_is_told_what_can_be_told() -> None:
    none = BundleArrays(np.zeros(len(REAL), np.int64), *[np.zeros(0)] * 3)
    report = evaluated(REAL, none, INDEPENDENT, settings=WITH_CLASSIFIERS)
    assert report.metrics["count_at_least_2_ratio"].value == 0.0
    assert "count_tv" in caught(report)
    assert "log10_energy_w1" not in report.metrics
    assert "c2st_auc" not in report.metrics
    assert "log10_energy_w1" in report.notes[-1]


@pytest.mark.slow
def test_few_showers_with_muons_among_many_are_told_what_can_be_told() -> None:
    """Forty of two hundred: some parts of the sample, and most bootstraps of these, hold none of them."""
    shower_E = np.random.default_rng(0).permutation(np.repeat(np.arange(200), 20))

    def emptied(bundles: BundleArrays) -> BundleArrays:
        kept_P = np.repeat(shower_E < 40, bundles.counts_E)
        columns = (bundles.energy_gev_P, bundles.x_m_P, bundles.y_m_P)
        return BundleArrays(np.where(shower_E < 40, bundles.counts_E, 0), *(column[kept_P] for column in columns))

    real = Sample(REAL.primary_E4, shower_E, emptied(REAL.bundles))
    assert (real.bundles.counts_E > 0).sum() > 400
    for independent in (emptied(INDEPENDENT), None):
        settings = EvaluationSettings(bootstraps=50, c2st=False, floor_splits=2)
        report = evaluated(real, emptied(GOOD), independent, settings=settings)
        assert np.isfinite(report.metrics["log10_energy_w1"].error)
        assert "fpd" in report.notes[-1]


@pytest.mark.slow
def test_a_bootstrap_that_leaves_one_half_empty_is_no_error() -> None:
    four = replace(REAL, shower_E=np.arange(len(REAL)) % 4)
    report = evaluated(four, GOOD, settings=EvaluationSettings(bootstraps=50, c2st=False))
    assert np.isfinite(report.metrics["count_tv"].error)


def test_lengths_that_differ_and_weights_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="generated: 3999 events, but there are 4000 real ones"):
        evaluated(REAL, GOOD.only(np.arange(4_000) > 0))
    with pytest.raises(ValueError, match="weight"):
        evaluated(replace(REAL, weight_E=np.full(4_000, -1.0)), GOOD)
    with pytest.raises(ValueError, match="two showers"):
        evaluated(replace(REAL, shower_E=np.zeros(4_000, np.int64)), GOOD)


@pytest.mark.slow
def test_progress_goes_from_nothing_to_all() -> None:
    told: list[tuple[str, float]] = []
    settings = replace(WITH_CLASSIFIERS, c2st_epochs=1, bootstraps=1, floor_splits=1)

    def progress(what: str, part: float) -> None:
        told.append((what, part))

    evaluate(REAL, GOOD, pit_E=None, settings=settings, progress=progress)
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert parts[0] == 0.0
    assert told[-1] == ("done", 1.0)
    assert len({what for what, _ in told}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("floor_kind", ["same primaries", "disjoint showers"])
def test_floors_that_were_measured_with_another_generator_are_taken(floor_kind: str) -> None:
    draws: list[str] = []

    def draw() -> BundleArrays:
        draws.append("drawn")
        return INDEPENDENT

    def report(generated: BundleArrays, other: MetricReport | None) -> MetricReport:
        return evaluate(
            REAL,
            generated,
            independent=(draw, draw) if floor_kind == "same primaries" else (),
            floors=other.floors if other else None,
            pit_E=None,
            settings=replace(NO_CLASSIFIERS, bootstraps=2),
            progress=lambda what, part: None,
        )

    other = report(BundleArrays(np.zeros(len(REAL), np.int64), *[np.zeros(0)] * 3), None)
    drawn = len(draws)
    assert "log10_energy_w1" not in other.metrics, "nor has it a metric of any muon"
    assert report(GOOD, other) == report(GOOD, None)
    assert len(draws) == 2 * drawn == (4 if floor_kind == "same primaries" else 0)
