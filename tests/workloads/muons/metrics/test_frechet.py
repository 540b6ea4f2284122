"""The Fréchet distance of Gaussian distributions, whose value is known, and of finite samples of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.event_features import EVENT_SUMMARY, event_summary, standardised
from workloads.muons.metrics.frechet import PARTS, FrechetDistance, frechet_of


def distance(a: Float64, b: Float64, weights_a: Float64 | None = None) -> float:
    parts = [np.arange(len(one)) % PARTS for one in (a, b)]
    rows = [np.ones((1, len(a))) if weights_a is None else weights_a[None], np.ones((1, len(b)))]
    return float(FrechetDistance(a, b, *parts)(*rows)[0])


def test_of_gaussians_it_is_what_the_formula_says() -> None:
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(2, 4, 4))
    one, other = factors @ np.swapaxes(factors, 1, 2) + np.eye(4)
    mean = rng.normal(size=(2, 4))
    expected = ((mean[0] - mean[1]) ** 2).sum() + np.trace(one + other - 2 * sqrtm(one @ other).real)
    assert frechet_of(mean[0], one, mean[1], other) == pytest.approx(expected)


def test_of_diagonal_gaussians_by_hand() -> None:
    found = frechet_of(np.zeros(2), np.diag([1.0, 4.0]), np.array([3.0, 0.0]), np.diag([4.0, 4.0]))
    assert found == pytest.approx(9.0 + 1.0)


def test_samples_of_one_distribution_have_none_and_of_a_shifted_and_scaled_one_the_analytic_value() -> None:
    rng = np.random.default_rng(2)
    real = rng.normal(size=(20_000, 9))
    assert distance(real, rng.normal(size=(20_000, 9))) == pytest.approx(0.0, abs=1e-3)
    scaled = 0.1 + 1.2 * rng.normal(size=(20_000, 9))
    assert distance(real, scaled) == pytest.approx(9 * (0.1**2 + 0.2**2), rel=0.05)


def test_the_part_that_a_finite_sample_adds_is_taken_away() -> None:
    rng = np.random.default_rng(3)
    found = [distance(rng.normal(size=(800, 9)), rng.normal(size=(800, 9))) for _ in range(30)]
    plain = [frechet_of(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T)) for a, b in rng.normal(size=(30, 2, 800, 9))]
    assert abs(np.mean(found)) < 0.25 * np.mean(plain)


def test_integer_weights_are_repetitions() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(400, 3)), rng.normal(size=(400, 3))
    times = rng.integers(1, 4, 400)
    part = np.arange(400) % PARTS
    repeated = FrechetDistance(np.repeat(a, times, 0), b, np.repeat(part, times), part)
    expected = repeated(np.ones((1, times.sum())), np.ones((1, 400)))[0]
    assert distance(a, b, times.astype(np.float64)) == pytest.approx(expected)


def test_the_nine_numbers_of_an_event_by_hand() -> None:
    muons = np.array([[10.0, 0.9, 0.0], [1000.0, 0.0, 9.9], [100.0, 99.9, 0.0]])
    summary = event_summary(BundleArrays.of(np.array([2, 0, 1]), muons))
    assert summary.shape == (2, len(EVENT_SUMMARY))
    radius = (10 * 0.9 + 1000 * 9.9) / 1010
    expected = [np.log10(3), np.log10(1010), 3.0, 2.0, 1.0, 0.5, 0.5, 0.5, np.log10(radius + 0.1)]
    assert summary[0] == pytest.approx(expected)
    assert summary[1] == pytest.approx([np.log10(2), 2.0, 2.0, 2.0, 0.0, 2.0, 0.0, 0.0, 2.0], abs=1e-7)


def test_features_are_in_units_of_the_real_spread_and_a_constant_one_stays_finite() -> None:
    real = np.stack([np.array([1.0, 3.0]), np.array([5.0, 5.0])], 1)
    one, other = standardised(real, real + 4)
    assert one[:, 0].tolist() == [-1, 1]
    assert other[:, 0].tolist() == [3, 5]
    assert one[:, 1].tolist() == [0, 0]


def test_weights_that_leave_a_part_empty_give_no_number_and_spoil_none_beside_it() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, 400, 3))
    part = np.arange(400) % PARTS
    weights = np.stack([np.ones(400), (part != 3).astype(np.float64)])
    found = FrechetDistance(a, b, part, part)(weights, np.ones((2, 400)))
    assert found[0] == pytest.approx(distance(a, b))
    assert np.isnan(found[1])
