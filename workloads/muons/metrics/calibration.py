"""Calibration of a model's probabilities for the real counts. Pure."""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Float64


class UniformityKS:
    """Kolmogorov-Smirnov distance of u in [0, 1] from the uniform distribution, for many sets of weights.

    For the probability integral transform u = P(N < n) + v P(N = n), v uniform: u is uniform if the model is right.
    """

    def __init__(self, u_E: Float64) -> None:
        self._order = np.argsort(u_E)
        self._sorted = u_E[self._order]

    def __call__(self, weights_BE: Float64) -> Float64:
        """Distances, (B, E) -> (B,)."""
        return np.array([self._one(weight_E[self._order]) for weight_E in weights_BE])

    def _one(self, weight: Float64) -> float:
        after = np.cumsum(weight)
        after /= after[-1]
        before = np.concatenate([[0.0], after[:-1]])
        return float(max((after - self._sorted).max(), (self._sorted - before).max()))


def expected_ks(weight_E: Float64) -> float:
    """Mean distance for uniform numbers of independent events.

    The mean of Kolmogorov's distribution is sqrt(pi / 2) ln 2; weights reduce the effective sample size (Kish).
    """
    effective = weight_E.sum() ** 2 / (weight_E**2).sum()
    return float(np.sqrt(np.pi / 2) * np.log(2) / np.sqrt(effective))
