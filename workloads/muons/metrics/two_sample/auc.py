"""Area under the ROC curve of weighted scores. Pure."""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Float64, Int64


class Auc:
    """P(score of b > score of a), ties counted half, for many sets of weights. 0.5: indistinguishable samples."""

    def __init__(self, scores_a: Float64, scores_b: Float64) -> None:
        values, code = np.unique(np.concatenate([scores_a, scores_b]), return_inverse=True)
        self._code_a, self._code_b = np.split(code, [len(scores_a)])
        self._size = len(values)
        self._known = bool(np.isfinite(values).all())

    def __call__(self, weights_a_B: Float64, weights_b_B: Float64) -> Float64:
        """AUCs, (B, scores of a), (B, scores of b) -> (B,). NaN if a score is not finite, as it has no rank."""
        if not self._known:
            return np.full(len(weights_a_B), np.nan)
        return np.array([self._one(a, b) for a, b in zip(weights_a_B, weights_b_B, strict=True)])

    def chance(self, weights_a: Float64, weights_b: Float64, shower_a: Int64, shower_b: Int64) -> float:
        """Standard deviation of the AUC of samples that are alike: sides swapped at random in each shower.

        AUC - 1/2 is the difference of the mean ranks of b and a among all scores, 0 to 1: a sum over showers, each with
        a random sign. Without weights and ties, for showers of one event, the mean is Mann-Whitney's 1 / sqrt(6 E).
        """
        if not self._known:
            return float("nan")
        weights = np.concatenate([-weights_a / weights_a.sum(), weights_b / weights_b.sum()])
        code = np.concatenate([self._code_a, self._code_b])
        part = np.bincount(code, np.abs(weights) / 2, self._size)
        ranks = (np.cumsum(part) - part / 2)[code]
        _, shower = np.unique(np.concatenate([shower_a, shower_b]), return_inverse=True)
        return float(np.sqrt(np.sum(np.bincount(shower, weights * (ranks - 0.5)) ** 2)))

    def _one(self, weights_a: Float64, weights_b: Float64) -> float:
        a = np.bincount(self._code_a, weights_a, self._size)
        b = np.bincount(self._code_b, weights_b, self._size)
        below = np.cumsum(a) - a / 2
        return float(below @ b / (a.sum() * b.sum()))
