"""Metrics of counts, tails and correlations, by hand, and for generators that are wrong in one of them only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest
from simulated import repeated

from workloads.base.report.metric import Floor
from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64, resampled
from workloads.muons.metrics.distances import CountMetrics, IntraEvent, TailMetrics, UniformityKS
from workloads.muons.metrics.evaluate import Measure, null_floor

COUNTS = np.array([0, 0, 1, 3])
GENERATED_COUNTS = np.array([0, 1, 1, 2, 12, 0, 2, 6])


def unweighted(kind: Callable[[Any, Any], Measure], a: Any, b: Any) -> dict[str, float]:
    found = kind(a, b)(np.ones((1, len(a))), np.ones((1, len(b))))
    return {name: float(values[0]) for name, values in found.items()}


count_metrics, tail_metrics, correlations = (
    partial(unweighted, kind) for kind in (CountMetrics, TailMetrics, IntraEvent)
)


def test_each_number_by_hand() -> None:
    found = count_metrics(COUNTS, GENERATED_COUNTS)
    # p = 1/2, 1/4, 0, 1/4 at 0, 1, 2, 3; q = 1/4, 1/4, 1/4, 1/8 (6), 1/8 (12).
    assert found["count_tv"] == pytest.approx((1 / 4 + 0 + 1 / 4 + 1 / 4 + 1 / 8 + 1 / 8) / 2)
    assert found["count_empty_difference"] == pytest.approx(-1 / 4)
    assert found["count_mean_ratio"] == pytest.approx((24 / 8) / 1)
    variance_real, variance_generated = 10 / 4 - 1, (1 + 1 + 4 + 144 + 4 + 36) / 8 - 9
    assert found["count_fano_ratio"] == pytest.approx((variance_generated / 3) / (variance_real / 1))
    assert found["count_at_least_2_ratio"] == pytest.approx((4 / 8) / (1 / 4))
    assert math.isnan(found["count_at_least_4_ratio"])
    assert math.isnan(found["count_at_least_100_ratio"])


def test_the_distance_from_uniform_is_that_of_kolmogorov_and_smirnov() -> None:
    u = np.random.default_rng(2).random(500) ** 1.3
    assert UniformityKS(u)(np.ones((1, 500)))[0] == pytest.approx(kstest(u, "uniform").statistic)
    assert UniformityKS(np.array([0.5]))(np.ones((1, 1)))[0] == pytest.approx(0.5)


def pit_floor(u: np.ndarray, shower: np.ndarray) -> Floor:
    """Floor of the PIT by 200 bootstraps of these showers."""
    bootstraps = resampled(shower, 200, np.random.default_rng(6))
    return null_floor(UniformityKS(u).null(np.ones(len(u)), bootstraps))


def test_the_floor_of_the_pit_is_what_uniform_numbers_have() -> None:
    """Mean and standard deviation of Kolmogorov's distribution, whatever the model's own u."""
    rng = np.random.default_rng(4)
    drawn = [UniformityKS(rng.random(2_000))(np.ones((1, 2_000)))[0] for _ in range(200)]
    for u in (rng.random(2_000), rng.random(2_000) ** 2):
        floor = pit_floor(u, np.arange(2_000))
        assert floor.value == pytest.approx(np.mean(drawn), rel=0.08)
        assert floor.spread == pytest.approx(np.std(drawn), rel=0.25)
        assert floor.error == pytest.approx(floor.spread / np.sqrt(200))


BELOW = "energy_below_cut_share"
TEV = "energy_above_1_tev_ratio"
FAR = "radius_above_100_m_ratio"


def events_with(*energies_gev: Sequence[float], radius_m: float = 1.0) -> BundleArrays:
    """Events with these muons."""
    energy_gev_P = np.array([energy for event in energies_gev for energy in event])
    num = len(energy_gev_P)
    return BundleArrays(
        np.array([len(one) for one in energies_gev]), energy_gev_P, np.full(num, radius_m), np.zeros(num)
    )


def test_shares_of_muons_by_hand() -> None:
    real = events_with([2e3] * 10 + [20.0] * 10, [30.0] * 20)
    generated = events_with([19.0, 20.0], [2e3, 900.0])
    assert tail_metrics(real, generated) == pytest.approx({TEV: (1 / 4) / (10 / 40), BELOW: 1 / 4})
    assert tail_metrics(real, events_with([19.0], []))[TEV] == 0.0
    far = events_with([20.0] * 12, radius_m=101.0)
    assert tail_metrics(far, far) == {FAR: 1.0, BELOW: 0.0}


WITHIN = "energy_radius_correlation_within_events_difference"
VARIANCE = "mean_log10_radius_variance_ratio_at_least_20"


def bundles_of(counts_E: np.ndarray, log10_energy_P: Float64, log10_radius_P: Float64) -> BundleArrays:
    x_m_P = 10**log10_radius_P - RADIUS_OFFSET_M
    return BundleArrays(counts_E, 10**log10_energy_P, x_m_P, np.zeros(len(x_m_P)))


def correlated(num_events: int, slope: float, common: float, seed: int) -> BundleArrays:
    """Radii fall with the energy inside events; a common part of the energy of an event is no radius' business."""
    rng = np.random.default_rng(seed)
    counts_E = rng.integers(0, 30, num_events)
    inside_P = rng.normal(size=counts_E.sum())
    log10_radius_P = 1 + slope * inside_P + 0.1 * rng.normal(size=len(inside_P))
    return bundles_of(
        counts_E, 3 + inside_P + np.repeat(common * rng.normal(size=num_events), counts_E), log10_radius_P
    )


def test_the_correlation_inside_events_is_numpys_and_does_not_see_what_events_have_in_common() -> None:
    real, generated = correlated(4_000, -0.1, 0.0, 1), correlated(4_000, -0.02, 2.0, 2)
    expected = []
    for one in (real, generated):
        values = [one.features[name].values for name in ("log10_energy", "log10_radius")]
        means = [np.bincount(one.event_P, of, len(one)) / np.maximum(one.counts_E, 1) for of in values]
        expected.append(np.corrcoef(*(of - mean[one.event_P] for of, mean in zip(values, means, strict=True)))[0, 1])
    assert correlations(real, generated)[WITHIN] == pytest.approx(expected[1] - expected[0])
    same = correlated(4_000, -0.1, 2.0, 2)
    assert correlations(real, same)[WITHIN] == pytest.approx(0.0, abs=0.01)


def test_the_variance_of_mean_radii_is_that_of_large_events_only() -> None:
    # Events of 20 muons at log10 r = 0 and 1, and some of 19 far out.
    counts_E = np.tile([20, 20, 19], 10)
    log10_energy_P = np.linspace(1, 2, counts_E.sum())
    real = bundles_of(counts_E, log10_energy_P, np.repeat(np.tile([0.0, 1.0, 5.0], 10), counts_E))
    nearer = bundles_of(counts_E, log10_energy_P, np.repeat(np.tile([0.5, 1.0, -0.5], 10), counts_E))
    assert correlations(real, nearer)[VARIANCE] == pytest.approx(0.25)
    assert correlations(real, nearer)["mean_log10_radius_variance_ratio_at_least_5"] < 0.25


@pytest.mark.parametrize(
    "metrics",
    [lambda a, b: CountMetrics(a.counts_E, b.counts_E), TailMetrics, IntraEvent],
    ids=["counts", "tails", "correlations"],
)
def test_integer_weights_are_repetitions(metrics: Callable[[BundleArrays, BundleArrays], Measure]) -> None:
    real, generated = correlated(60, -0.1, 0.3, 1), correlated(60, -0.1, 0.3, 2)
    times = np.random.default_rng(3).integers(1, 4, 60)  # none is left out: the lowest energy stays the cut
    rows = np.ones((1, 60))
    many = repeated(real, np.repeat(np.arange(60), times))
    expected = metrics(many, generated)(np.ones((1, len(many))), rows)
    weighted = metrics(real, generated)(times[None].astype(np.float64), rows)
    for name, value_B in expected.items():
        assert weighted[name] == pytest.approx(value_B, nan_ok=True), name
