"""W1 against shifted and scaled distributions, against scipy, and with weights that are repetitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from workloads.muons.metrics.bundles import Float64, Int64
from workloads.muons.metrics.wasserstein import BinnedWasserstein, Values


def one_bin(values: Float64) -> Values:
    """Every value is an event's only one."""
    return Values(values, np.arange(len(values)), np.zeros(len(values), np.int64))


def w1(a: Float64, b: Float64, weights_a: Float64 | None = None, weights_b: Float64 | None = None) -> float:
    rows = [np.ones(len(one)) if given is None else given for one, given in ((a, weights_a), (b, weights_b))]
    return float(BinnedWasserstein(one_bin(a), one_bin(b))(rows[0][None], rows[1][None])[0])


def test_a_shifted_uniform_distribution_is_as_far_away_as_it_was_shifted() -> None:
    even = (np.arange(1_000) + 0.5) / 1_000
    assert w1(even, even + 0.3) == pytest.approx(0.3)
    assert w1(even, even) == 0.0


def test_a_scaled_uniform_distribution_is_half_the_scale_away() -> None:
    even = (np.arange(10_000) + 0.5) / 10_000
    # Quantiles u and 3 u: the mean of 2 u is 1.
    assert w1(even, 3 * even) == pytest.approx(1.0)


def test_samples_of_different_sizes_with_ties_by_hand() -> None:
    assert w1(np.array([0.0]), np.array([0.0, 4.0])) == pytest.approx(2.0)
    assert w1(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 2.0])) == pytest.approx(1 / 3)


def test_weighted_samples_have_scipys_distance() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=300), rng.normal(0.2, 1.5, size=500)
    weights_a, weights_b = rng.random(300), rng.random(500)
    assert w1(a, b, weights_a, weights_b) == pytest.approx(wasserstein_distance(a, b, weights_a, weights_b))
    assert w1(a, b) == pytest.approx(wasserstein_distance(a, b))


def test_integer_weights_are_repetitions() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=50), rng.normal(size=60)
    times = rng.integers(0, 4, 50)
    assert w1(a, b, times.astype(np.float64)) == pytest.approx(w1(np.repeat(a, times), b))


def test_every_set_of_weights_has_a_distance_of_its_own() -> None:
    a, b = np.array([0.0, 1.0]), np.array([0.0])
    weights_a = np.array([[1.0, 1.0], [1.0, 3.0], [1.0, 0.0]])
    found = BinnedWasserstein(one_bin(a), one_bin(b))(weights_a, np.ones((3, 1)))
    assert found == pytest.approx([0.5, 0.75, 0.0])


def in_bins(values: Float64, event: Int64, bin_E: Int64) -> Values:
    return Values(values, event, bin_E)


def test_bins_are_compared_each_for_itself_and_left_out_events_nowhere() -> None:
    rng = np.random.default_rng(3)
    sides, expected = [], []
    for shift in (0.0, 0.4):
        event = rng.integers(0, 90, 600)
        bin_E = np.arange(90) % 4 - 1
        sides.append((rng.normal(shift, 1, 600), event, bin_E))
    weights = [rng.random(90), rng.random(90)]
    for number in range(3):
        chosen = [bin_E[event] == number for _, event, bin_E in sides]
        (a, event_a, _), (b, event_b, _) = sides
        expected.append(
            wasserstein_distance(
                a[chosen[0]], b[chosen[1]], weights[0][event_a[chosen[0]]], weights[1][event_b[chosen[1]]]
            )
        )
    found = BinnedWasserstein(*(in_bins(*side) for side in sides), num_bins=3)(weights[0][None], weights[1][None])
    assert found[0] == pytest.approx(np.mean(expected))


def test_a_bin_without_weight_has_no_distance() -> None:
    side = in_bins(np.array([1.0, 2.0]), np.array([0, 1]), np.array([0, 1]))
    found = BinnedWasserstein(side, side, 2)(np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones((2, 2)))
    assert math.isnan(found[0])
    assert found[1] == 0.0
