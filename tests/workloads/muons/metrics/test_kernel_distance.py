"""The kernel distance against the sum over all pairs, on sets small enough for it."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.muons.metrics.bundles import Float64
from workloads.muons.metrics.kernel_distance import KernelDistance, monomials, polynomial_kernel


def by_hand(a: Float64, b: Float64, weights_a: Float64, weights_b: Float64) -> float:
    """From the definition: means over pairs of two different events of a sample, and over pairs of both samples."""

    def mean(x: Float64, y: Float64, of: Float64) -> float:
        kernel = (x @ y.T / x.shape[1] + 1.0) ** 4
        return float((of * kernel).sum() / of.sum())

    within = [np.outer(one, one) - np.diag(one**2) for one in (weights_a, weights_b)]
    return mean(a, a, within[0]) + mean(b, b, within[1]) - 2 * mean(a, b, np.outer(weights_a, weights_b))


def test_on_tiny_sets_it_is_the_sum_over_all_pairs() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(7, 9)), rng.normal(0.5, 1, size=(5, 9))
    weights_a, weights_b = rng.random(7), rng.random(5)
    found = KernelDistance(a, b)(np.stack([np.ones(7), weights_a]), np.stack([np.ones(5), weights_b]))
    assert found[0] == pytest.approx(by_hand(a, b, np.ones(7), np.ones(5)))
    assert found[1] == pytest.approx(by_hand(a, b, weights_a, weights_b))


def test_two_points_by_hand() -> None:
    a, b = np.array([[1.0], [1.0]]), np.array([[0.0], [0.0]])
    # k(1, 1) = 16, k(0, 0) = k(1, 0) = 1.
    assert KernelDistance(a, b)(np.ones((1, 2)), np.ones((1, 2)))[0] == pytest.approx(16 + 1 - 2)


def test_monomials_multiply_to_the_kernel() -> None:
    x, y = np.random.default_rng(2).normal(size=(2, 20, 3))
    assert (monomials(x) * monomials(y)).sum(1) == pytest.approx(polynomial_kernel(x, y))


def test_samples_of_one_distribution_have_none_in_the_mean() -> None:
    rng = np.random.default_rng(3)
    ones = np.ones((1, 300))
    found = [KernelDistance(*rng.normal(size=(2, 300, 4)))(ones, ones)[0] for _ in range(60)]
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(60)
    assert min(found) < 0
