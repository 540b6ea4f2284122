"""Angles between directions, exact where the arccosine is not."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.direction.grouping import unit_vectors
from workloads.direction.metrics.angles import angles_rad, azimuth_zenith_rad


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 1e-4, 0.3, np.pi / 2, 3.0, np.pi - 1e-9, np.pi])
def test_an_angle_is_exact_however_small_or_wide_it_is(angle: float) -> None:
    a = np.array([[1.0, 0.0, 0.0]])
    b = np.array([[np.cos(angle), np.sin(angle), 0.0]])
    np.testing.assert_allclose(angles_rad(a, b), [angle], rtol=1e-12, atol=1e-15)


def test_vectors_longer_than_one_by_rounding_have_an_angle() -> None:
    a = np.array([[0.6, 0.8, 1e-9]]) * (1 + 4e-16)
    assert (a * a).sum() > 1
    np.testing.assert_allclose(angles_rad(a, a), [0.0])
    np.testing.assert_allclose(angles_rad(a, -a), [np.pi])


def test_azimuth_and_zenith_are_those_that_the_vector_was_made_of() -> None:
    random = np.random.default_rng(0)
    arrival_E2 = np.stack([random.uniform(0, 2 * np.pi, 500), random.uniform(0, np.pi, 500)], 1)
    azimuth_E, zenith_E = azimuth_zenith_rad(unit_vectors(arrival_E2))
    np.testing.assert_allclose(azimuth_E, arrival_E2[:, 0], atol=1e-9)
    np.testing.assert_allclose(zenith_E, arrival_E2[:, 1], atol=1e-12)


def test_an_azimuth_never_is_a_whole_turn() -> None:
    azimuth_E, zenith_E = azimuth_zenith_rad(np.array([[1.0, -1e-17, 0.0], [0.0, 0.0, -1.0], [0.0, -1.0, 0.0]]))
    np.testing.assert_allclose(azimuth_E, [0.0, 0.0, 1.5 * np.pi])
    np.testing.assert_allclose(zenith_E, [np.pi / 2, np.pi, np.pi / 2])
