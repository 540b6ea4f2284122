"""Area under the ROC curve of weighted scores. Pure."""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Float64


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

    def _one(self, weights_a: Float64, weights_b: Float64) -> float:
        a = np.bincount(self._code_a, weights_a, self._size)
        b = np.bincount(self._code_b, weights_b, self._size)
        below = np.cumsum(a) - a / 2
        return float(below @ b / (a.sum() * b.sum()))
