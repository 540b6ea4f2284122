"""The distribution against numerical integration, closed forms and its own draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from workloads.direction.metrics.von_mises_fisher import (
    drawn_angles_rad,
    mean_angle_rad,
    negative_log_density,
    pull,
)

EVERY_KAPPA = [0.0, 1e-9, 1e-5, 9.9e-5, 1.01e-4, 1e-3, 0.1, 1.0, 7.5, 50.0, 713.0, 800.0, 1e4, 1e8]


def one(kappa: float) -> np.ndarray:
    return np.array([kappa])


def integrated(kappa: float, power: int) -> float:
    """Integral of θ^power sin θ exp(κ (cos θ - 1)) over the part of the sphere that has the probability."""
    widest = min(np.pi, 12 / np.sqrt(max(kappa, 1e-12)))
    return quad(
        lambda t: t**power * np.sin(t) * np.exp(-2 * kappa * np.sin(t / 2) ** 2), 0, widest, epsabs=0, epsrel=1e-11
    )[0]


@pytest.mark.parametrize("kappa", EVERY_KAPPA)
def test_the_mean_angle_is_the_integral(kappa: float) -> None:
    expected = integrated(kappa, 1) / integrated(kappa, 0)
    np.testing.assert_allclose(mean_angle_rad(one(kappa)), expected, rtol=1e-8)


def test_the_mean_angle_has_its_known_limits() -> None:
    assert mean_angle_rad(one(0.0))[0] == np.pi / 2
    np.testing.assert_allclose(mean_angle_rad(one(1e300)), np.sqrt(np.pi / 2e300), rtol=1e-9)
    falling = mean_angle_rad(np.geomspace(1e-8, 1e8, 4000))
    assert (np.diff(falling) < 0).all()


@pytest.mark.parametrize("kappa", EVERY_KAPPA)
def test_the_density_has_the_integral_one(kappa: float) -> None:
    widest = min(np.pi, 12 / np.sqrt(max(kappa, 1e-12)))
    density = quad(
        lambda t: 2 * np.pi * np.sin(t) * np.exp(-negative_log_density(one(kappa), one(t))[0]), 0, widest, epsrel=1e-10
    )[0]
    np.testing.assert_allclose(density, 1.0, rtol=1e-8)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 5.0, 1e4])
def test_drawn_angles_have_the_mean_that_is_expected(kappa: float) -> None:
    drawn = drawn_angles_rad(np.full(40_000, kappa), np.random.default_rng(1))
    assert abs(drawn.mean() / mean_angle_rad(one(kappa))[0] - 1) < 4 * drawn.std() / drawn.mean() / 200
    assert drawn.min() >= 0
    assert drawn.max() <= np.pi


def test_the_pull_of_a_hand_computed_angle() -> None:
    np.testing.assert_allclose(pull(one(3.0), one(np.pi / 2)), [6.0])
    np.testing.assert_allclose(pull(one(1e12), one(1e-6)), [1.0])


def test_pulls_of_drawn_angles_follow_chi_squared_with_two_degrees_of_freedom() -> None:
    kappa_K = np.full(40_000, 400.0)
    pulls = pull(kappa_K, drawn_angles_rad(kappa_K, np.random.default_rng(2)))
    np.testing.assert_allclose([pulls.mean(), np.median(pulls)], [2.0, np.log(4)], rtol=0.03)
