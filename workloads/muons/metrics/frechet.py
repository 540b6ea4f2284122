"""Fréchet distance of two distributions of features, without the bias of finite samples. Pure.

After "On the evaluation of generative models in high energy physics", arXiv:2211.10295: FPD there. Two differences:
features are in units of their standard deviation (there of their maximum, which heavy tails make useless), and
smaller samples are parts of the whole (there random draws).

B sets of weights, F events, D features, K parts of the sample.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Float64, Int64

PARTS = 8
MIN_EVENTS = 50 * PARTS
"""Fewest events: with fewer, parts are too small for a covariance of nine features."""


class FrechetDistance:
    """Squared distance |mean difference|² + tr(S + T - 2 (S T)^½) of weighted samples, extrapolated to 1/n -> 0."""

    def __init__(self, a_FD: Float64, b_FD: Float64, part_a_F: Int64, part_b_F: Int64) -> None:
        """``part``: 0 to PARTS - 1 for each event. Events of one shower have one part, in both samples."""
        self._parts = [_Parts(a_FD, part_a_F), _Parts(b_FD, part_b_F)]

    def __call__(self, weights_a_BF: Float64, weights_b_BF: Float64) -> Float64:
        """Distance for each set of weights; NaN where a part has no weight."""
        a_BKM, b_BKM = (
            parts(weights) for parts, weights in zip(self._parts, (weights_a_BF, weights_b_BF), strict=True)
        )
        # A sample of n events has a bias of about c / n. Sizes n, n/2, n/4, n/8, in disjoint parts.
        groups = [1, 2, 4, PARTS]
        found_GB = np.stack([self._mean_of_groups(a_BKM, b_BKM, number) for number in groups])
        known_B = np.isfinite(found_GB).all(0)
        return np.where(known_B, np.polyfit(groups, np.where(known_B, found_GB, 0.0), 1)[1], np.nan)

    def _mean_of_groups(self, a_BKM: Float64, b_BKM: Float64, number: int) -> Float64:
        shape = (len(a_BKM), number, PARTS // number, -1)
        a_BGM, b_BGM = (moments.reshape(shape).sum(2) for moments in (a_BKM, b_BKM))
        known_BG = (a_BGM[..., 0] > 0) & (b_BGM[..., 0] > 0)
        # Eigenvalues of NaN raise an error for the whole batch: NaN are replaced, and their results discarded.
        a_BGM, b_BGM = (np.where(known_BG[..., None], moments, 1.0) for moments in (a_BGM, b_BGM))
        distance_B: Float64 = np.where(known_BG, frechet_of(*_gaussian(a_BGM), *_gaussian(b_BGM)), np.nan).mean(1)
        return distance_B


class _Parts:
    """Weighted sums of 1, the features, and their products, of each part of a sample."""

    def __init__(self, features_FD: Float64, part_F: Int64) -> None:
        self._order = np.argsort(part_F, kind="stable")
        self._ends = np.cumsum(np.bincount(part_F, minlength=PARTS))
        one_FD = np.concatenate([np.ones((len(features_FD), 1)), features_FD], 1)[self._order]
        self._products_FM = (one_FD[:, :, None] * one_FD[:, None, :]).reshape(len(one_FD), -1)

    def __call__(self, weights_BF: Float64) -> Float64:
        """Sums, (B, K, M), M = (D + 1)²."""
        ordered_BF = weights_BF[:, self._order]
        begins = [0, *self._ends[:-1]]
        return np.stack(
            [
                ordered_BF[:, begin:end] @ self._products_FM[begin:end]
                for begin, end in zip(begins, self._ends, strict=True)
            ],
            1,
        )


def frechet_of(mean_a: Float64, cov_a: Float64, mean_b: Float64, cov_b: Float64) -> Float64:
    """Fréchet distance of Gaussian distributions. (..., D), (..., D, D) of both -> (...)."""
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    # tr (S T)^½: the eigenvalues of S T are those of S^½ T S^½, which is symmetric.
    of_product = np.linalg.eigvalsh(root @ cov_b @ root)
    traces = np.trace(cov_a, axis1=-2, axis2=-1) + np.trace(cov_b, axis1=-2, axis2=-1)
    distance: Float64 = ((mean_a - mean_b) ** 2).sum(-1) + traces - 2.0 * np.sqrt(np.maximum(of_product, 0.0)).sum(-1)
    return distance


def _gaussian(moments: Float64) -> tuple[Float64, Float64]:
    """Mean and covariance from sums. (..., (D + 1)²) -> (..., D), (..., D, D)."""
    size = int(np.sqrt(moments.shape[-1]))
    matrix = moments.reshape(*moments.shape[:-1], size, size)
    matrix = matrix / matrix[..., :1, :1]
    mean = matrix[..., 0, 1:]
    return mean, matrix[..., 1:, 1:] - mean[..., :, None] * mean[..., None, :]
