"""Numbers about counts against two distributions that are known, and the PIT against a uniform one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kstest, poisson

from workloads.base.report.metric import Floor
from workloads.muons.metrics.bootstrap import resampled
from workloads.muons.metrics.calibration import UniformityKS
from workloads.muons.metrics.counts import CountMetrics
from workloads.muons.metrics.floors import null_floor

REAL = np.array([0, 0, 1, 3])
GENERATED = np.array([0, 1, 1, 2, 12, 0, 2, 6])


def ones(counts_E: np.ndarray) -> np.ndarray:
    return np.ones((1, len(counts_E)))


def told(real: np.ndarray, generated: np.ndarray) -> dict[str, float]:
    found = CountMetrics(real, generated)(ones(real), ones(generated))
    return {name: float(values[0]) for name, values in found.items()}


def test_each_number_by_hand() -> None:
    found = told(REAL, GENERATED)
    # p = 1/2, 1/4, 0, 1/4 at 0, 1, 2, 3; q = 1/4, 1/4, 1/4, 1/8 (6), 1/8 (12).
    assert found["count_tv"] == pytest.approx((1 / 4 + 0 + 1 / 4 + 1 / 4 + 1 / 8 + 1 / 8) / 2)
    assert found["count_empty_difference"] == pytest.approx(-1 / 4)
    assert found["count_mean_ratio"] == pytest.approx((24 / 8) / 1)
    variance_real, variance_generated = 10 / 4 - 1, (1 + 1 + 4 + 144 + 4 + 36) / 8 - 9
    assert found["count_fano_ratio"] == pytest.approx((variance_generated / 3) / (variance_real / 1))
    assert found["count_at_least_2_ratio"] == pytest.approx((4 / 8) / (1 / 4))
    assert math.isnan(found["count_at_least_4_ratio"])
    assert math.isnan(found["count_at_least_100_ratio"])


def test_w1_of_counts_by_hand() -> None:
    found = told(np.array([0, 9]), np.array([9, 99]))
    assert found["log10_count_w1"] == pytest.approx(1.0)
    assert found["count_tv"] == pytest.approx(0.5)


def test_distributions_that_do_not_overlap_have_a_total_variation_of_one() -> None:
    assert told(np.array([2, 2]), np.array([0, 1]))["count_tv"] == pytest.approx(1.0)
    same = told(np.array([1, 2]), np.array([2, 1, 1, 2]))
    assert same["count_tv"] == same["log10_count_w1"] == same["count_empty_difference"] == 0.0
    assert same["count_mean_ratio"] == same["count_fano_ratio"] == same["count_at_least_2_ratio"] == 1.0


def test_integer_weights_are_repetitions() -> None:
    rng = np.random.default_rng(1)
    real, generated, times = rng.poisson(4.0, 80), rng.poisson(5.0, 90), rng.integers(0, 4, 80)
    found = CountMetrics(real, generated)(times[None].astype(np.float64), ones(generated))
    repeated = told(np.repeat(real, times), generated)
    for name, value in repeated.items():
        assert found[name][0] == pytest.approx(value, nan_ok=True), name


def test_the_distance_from_uniform_is_that_of_kolmogorov_and_smirnov() -> None:
    u = np.random.default_rng(2).random(500) ** 1.3
    assert UniformityKS(u)(np.ones((1, 500)))[0] == pytest.approx(kstest(u, "uniform").statistic)
    assert UniformityKS(np.array([0.5]))(np.ones((1, 1)))[0] == pytest.approx(0.5)


def test_integer_weights_of_u_are_repetitions() -> None:
    rng = np.random.default_rng(3)
    u, times = rng.random(100), rng.integers(0, 4, 100)
    found = UniformityKS(u)(times[None].astype(np.float64))[0]
    assert found == pytest.approx(kstest(np.repeat(u, times), "uniform").statistic)


def null(u: np.ndarray, shower: np.ndarray) -> Floor:
    """Floor of the PIT by 200 bootstraps of these showers."""
    bootstraps = resampled(shower, 200, np.random.default_rng(6))
    return null_floor(UniformityKS(u).null(np.ones(len(u)), bootstraps))


def test_the_floor_of_the_pit_is_what_uniform_numbers_have() -> None:
    """Mean and standard deviation of Kolmogorov's distribution, whatever the model's own u."""
    rng = np.random.default_rng(4)
    drawn = [UniformityKS(rng.random(2_000))(np.ones((1, 2_000)))[0] for _ in range(200)]
    for u in (rng.random(2_000), rng.random(2_000) ** 2):
        floor = null(u, np.arange(2_000))
        assert floor.value == pytest.approx(np.mean(drawn), rel=0.08)
        assert floor.spread == pytest.approx(np.std(drawn), rel=0.25)
        assert floor.error == pytest.approx(floor.spread / np.sqrt(200))


def test_showers_of_four_alike_events_double_the_floor_of_the_pit() -> None:
    u = np.repeat(np.random.default_rng(5).random(500), 4)
    independent, alike = null(u, np.arange(2_000)), null(u, np.repeat(np.arange(500), 4))
    assert alike.value == pytest.approx(2 * independent.value, rel=0.1)


def test_the_pit_of_a_right_count_model_is_uniform_and_that_of_a_wrong_one_is_not() -> None:
    rng = np.random.default_rng(5)
    mean = rng.uniform(0.2, 20.0, 5_000)
    counts = rng.poisson(mean)
    floor = null(rng.random(5_000), np.arange(5_000)).value
    for wrong, expected in ((1.0, True), (1.2, False)):
        below = poisson.cdf(counts - 1, mean * wrong)
        u = below + rng.random(5_000) * (poisson.cdf(counts, mean * wrong) - below)
        assert bool(UniformityKS(u)(np.ones((1, 5_000)))[0] < 2 * floor) is expected
