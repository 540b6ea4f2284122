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
        distances = []
        for weight_E in weights_BE:
            after = self._cumulative(weight_E)
            before = np.concatenate([[0.0], after[:-1]])
            distances.append(max((after - self._sorted).max(), (self._sorted - before).max()))
        return np.array(distances)

    def null(self, weight_E: Float64, weights_BE: Float64) -> Float64:
        """Distances of bootstraps from the sample: how far chance alone takes a right model. (E,), (B, E) -> (B,).

        Bootstraps of whole showers have the correlations of their events.
        """
        sample = self._cumulative(weight_E)
        return np.array([np.abs(self._cumulative(one_E) - sample).max() for one_E in weights_BE])

    def _cumulative(self, weight_E: Float64) -> Float64:
        """Weight up to each value of u, in order, 1 at the end."""
        after: Float64 = np.cumsum(weight_E[self._order])
        after /= after[-1]
        return after
