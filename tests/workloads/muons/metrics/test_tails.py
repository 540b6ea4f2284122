"""Tails against numbers by hand, and generators that are wrong in a tail only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from simulated import drawn_again, real_sample, repeated, with_counts

from workloads.base.report.metric import Metric
from workloads.base.report.verdict import verdict
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.comparison import Comparison
from workloads.muons.metrics.definitions import DEFINITIONS
from workloads.muons.metrics.floors import floors_of
from workloads.muons.metrics.tails import TailMetrics

BELOW = "energy_below_cut_share"
TEV = "energy_above_1_tev_ratio"
FAR = "radius_above_100_m_ratio"


def bundles(*energies_gev: Sequence[float], radius_m: float = 1.0) -> BundleArrays:
    """Events with these muons."""
    energy_gev_P = np.array([energy for event in energies_gev for energy in event])
    num = len(energy_gev_P)
    return BundleArrays(
        np.array([len(one) for one in energies_gev]), energy_gev_P, np.full(num, radius_m), np.zeros(num)
    )


def told(a: BundleArrays, b: BundleArrays, weights_a: Float64 | None = None) -> dict[str, float]:
    ones = np.ones((1, len(a)))
    found = TailMetrics(a, b)(ones if weights_a is None else weights_a[None], np.ones((1, len(b))))
    return {name: float(values[0]) for name, values in found.items()}


def test_shares_of_muons_by_hand() -> None:
    real = bundles([2e3] * 10 + [20.0] * 10, [30.0] * 20)
    generated = bundles([19.0, 20.0], [2e3, 900.0])
    assert told(real, generated) == pytest.approx({TEV: (1 / 4) / (10 / 40), BELOW: 1 / 4})
    assert told(real, bundles([19.0], []))[TEV] == 0.0
    far = bundles([20.0] * 12, radius_m=101.0)
    assert told(far, far) == {FAR: 1.0, BELOW: 0.0}


def test_a_tail_with_fewer_than_ten_real_muons_has_no_ratio() -> None:
    real = bundles([2e3] * 9 + [20.0] * 5)
    assert told(real, bundles([2e3])) == {BELOW: 0.0}


def test_without_muons_there_is_nothing_to_compare() -> None:
    none, some = bundles([]), bundles([2e3] * 10)
    assert told(none, some) == {}
    assert np.isnan(list(told(some, none).values())).all()


def test_integer_weights_of_events_are_repetitions() -> None:
    rng = np.random.default_rng(1)
    real, generated = (bundles(*(10 ** rng.normal(3, 1, rng.integers(0, 9)) for _ in range(50))) for _ in range(2))
    times = rng.integers(0, 4, 50)
    expected = told(repeated(real, np.repeat(np.arange(50), times)), generated)
    found = told(real, generated, times.astype(np.float64))
    assert found[TEV] == pytest.approx(expected[TEV])


NUM_EVENTS = 40_000
REAL = real_sample(NUM_EVENTS)
REDRAWS = [drawn_again(REAL, 10 + number) for number in range(8)]
GOOD = drawn_again(REAL, 2)


def caught(generated: BundleArrays) -> set[str]:
    """Metrics that are not at the floor of the redraws."""
    floors = floors_of([values(redraw) for redraw in REDRAWS], averaged=1)
    metrics = {
        name: Metric.of(DEFINITIONS[name], value, math.nan, floors[name]) for name, value in values(generated).items()
    }
    return {name for name, metric in metrics.items() if verdict(metric) != "at floor"}


def values(generated: BundleArrays) -> dict[str, float]:
    """Fast metrics of events for the primaries of the real ones."""
    everything = np.ones(NUM_EVENTS, np.bool_)
    paired = Comparison(REAL, REAL.with_bundles(generated), everything, everything)
    ones = np.ones((1, NUM_EVENTS))
    return {name: float(of[0]) for measure in paired.moments() for name, of in measure(ones, ones).items()}


def test_an_honest_generator_has_honest_tails() -> None:
    assert not caught(GOOD)


def test_energies_clipped_at_the_top_thousandth_are_caught_by_the_number_above_ten_tev() -> None:
    clipped = np.minimum(GOOD.energy_gev_P, np.quantile(GOOD.energy_gev_P, 0.999))
    found = caught(BundleArrays(GOOD.counts_E, clipped, GOOD.x_m_P, GOOD.y_m_P))
    assert found == {"energy_above_10_tev_ratio", "energy_above_30_tev_ratio"}


def test_counts_two_percent_too_high_are_caught_by_the_mean_count() -> None:
    more_E = np.random.default_rng(3).binomial(GOOD.counts_E, 0.02)
    assert "count_mean_ratio" in caught(with_counts(GOOD, GOOD.counts_E + more_E))


def test_mean_radii_of_large_bundles_that_are_too_much_alike_are_caught_by_their_variance() -> None:
    """The log10 r of a large bundle is moved halfway to that of all of them: single muons hardly change."""
    counts_F = GOOD.counts_E[GOOD.filled_F]
    mean_F = GOOD.per_event(GOOD.features["log10_radius"]) / counts_F
    large_F = counts_F >= 100
    factor_F = np.where(large_F, 10 ** ((mean_F[large_F].mean() - mean_F) / 2), 1.0)
    factor_P = np.repeat(factor_F, counts_F)
    narrowed = BundleArrays(GOOD.counts_E, GOOD.energy_gev_P, factor_P * GOOD.x_m_P, factor_P * GOOD.y_m_P)
    assert "mean_log10_radius_variance_ratio_at_least_100" in caught(narrowed)


def test_energies_below_the_real_cut_are_caught_by_their_share() -> None:
    energy_gev_P = np.where(np.arange(len(GOOD.energy_gev_P)) % 1_000, GOOD.energy_gev_P, 0.9)
    assert BELOW in caught(BundleArrays(GOOD.counts_E, energy_gev_P, GOOD.x_m_P, GOOD.y_m_P))
