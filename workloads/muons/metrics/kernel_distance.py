"""Maximum mean discrepancy of two distributions of features with a polynomial kernel. Pure.

k(x, y) = (x·y / D + 1)^4, as in "On the evaluation of generative models in high energy physics", arXiv:2211.10295: KPD
there, the median of batches of 5,000 events because a kernel of all pairs does not fit. Here the kernel is written as
a product of monomials: all pairs of all events count, in a time linear in the number of events.

B sets of weights, F events, D features, M monomials.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import numpy.typing as npt

from workloads.muons.metrics.bundles import Float64

DEGREE = 4
_EVENTS_AT_A_TIME = 512
"""Few, so that their monomials fit into the processor's cache."""


def polynomial_kernel(x_FD: Float64, y_FD: Float64) -> Float64:
    """Kernel k(x, y) of corresponding rows. (F, D), (F, D) -> (F,)."""
    kernel_F: Float64 = ((x_FD * y_FD).sum(1) / x_FD.shape[1] + 1.0) ** DEGREE
    return kernel_F


def monomials(x_FD: Float64) -> Float64:
    """Monomials m(x) with m(x)·m(y) = k(x, y). (F, D) -> (F, M)."""
    # A further coordinate, 1, makes the polynomial homogeneous; the factors are those of the multinomial theorem.
    size = x_FD.shape[1]
    wide_DF = np.concatenate([x_FD.T / math.sqrt(size), np.ones((1, len(x_FD)))])
    factors_M, (first, *others) = _terms(size + 1)
    found_MF: Float64 = wide_DF[first] * factors_M[:, None]
    for other in others:
        found_MF *= wide_DF[other]
    return found_MF.T


@cache
def _terms(size: int) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Factor of each monomial of ``size`` coordinates, (M,), and its coordinates, (DEGREE, M)."""
    chosen = list(itertools.combinations_with_replacement(range(size), DEGREE))
    powers = [math.prod(math.factorial(one.count(index)) for index in set(one)) for one in chosen]
    return np.sqrt(math.factorial(DEGREE) / np.array(powers, np.float64)), np.array(chosen).T


class KernelDistance:
    """Unbiased squared MMD of weighted samples: its mean is 0 for equal distributions, so it may be negative."""

    def __init__(self, a_FD: Float64, b_FD: Float64) -> None:
        self._features = (a_FD, b_FD)

    def __call__(self, weights_a_BF: Float64, weights_b_BF: Float64) -> Float64:
        """Distance for each set of weights."""
        mean_a, within_a = _sums(self._features[0], weights_a_BF)
        mean_b, within_b = _sums(self._features[1], weights_b_BF)
        distance_B: Float64 = within_a + within_b - 2.0 * (mean_a * mean_b).sum(1)
        return distance_B


def _sums(features_FD: Float64, weights_BF: Float64) -> tuple[Float64, Float64]:
    """Weighted mean of the monomials (B, M), and of the kernel over all pairs of two different events (B,)."""
    sums_BM: Float64 = np.zeros((len(weights_BF), 1))
    for first in range(0, len(features_FD), _EVENTS_AT_A_TIME):
        chunk = slice(first, first + _EVENTS_AT_A_TIME)
        sums_BM = sums_BM + weights_BF[:, chunk] @ monomials(features_FD[chunk])
    total_B, squares_B = weights_BF.sum(1), (weights_BF**2).sum(1)
    with_itself_B = weights_BF**2 @ polynomial_kernel(features_FD, features_FD)
    with np.errstate(divide="ignore", invalid="ignore"):
        within_B = ((sums_BM**2).sum(1) - with_itself_B) / (total_B**2 - squares_B)
        return sums_BM / total_B[:, None], within_B
