"""Differences between two samples in the numbers of muons, for many sets of event weights. Pure.

B sets of weights, E events, V different numbers of muons.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Bool, Float64, Int64

AT_LEAST = (2, 4, 10, 100)


class CountMetrics:
    """Metrics of p(N) of ``b`` (generated) against that of ``a`` (real)."""

    def __init__(self, counts_a_E: Int64, counts_b_E: Int64) -> None:
        self._values, code = np.unique(np.concatenate([counts_a_E, counts_b_E]), return_inverse=True)
        self._code_a_E, self._code_b_E = np.split(code, [len(counts_a_E)])

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Metrics by name; a ratio is NaN where the real number is 0."""
        p_BV, q_BV = self._pmf(self._code_a_E, weights_a_BE), self._pmf(self._code_b_E, weights_b_BE)
        steps = np.diff(np.log10(1.0 + self._values))
        between_BV = np.abs(np.cumsum(p_BV - q_BV, 1))[:, :-1]
        (mean_p, fano_p), (mean_q, fano_q) = self._moments(p_BV), self._moments(q_BV)
        found = {
            "count_tv": np.abs(p_BV - q_BV).sum(1) / 2,
            "log10_count_w1": between_BV @ steps,
            "count_empty_difference": self._part(q_BV, self._values == 0) - self._part(p_BV, self._values == 0),
            "count_mean_ratio": _ratio(mean_q, mean_p),
            "count_fano_ratio": _ratio(fano_q, fano_p),
        }
        for least in AT_LEAST:
            many = self._values >= least
            found[f"count_at_least_{least}_ratio"] = _ratio(self._part(q_BV, many), self._part(p_BV, many))
        return found

    def _pmf(self, code_E: Int64, weights_BE: Float64) -> Float64:
        size = len(self._values)
        sums_BV = np.stack([np.bincount(code_E, weight_E, size) for weight_E in weights_BE])
        total_B1 = sums_BV.sum(1, keepdims=True)
        # A bootstrap of few showers may draw no such event: NaN.
        pmf_BV: Float64 = np.divide(sums_BV, total_B1, out=np.full_like(sums_BV, np.nan), where=total_B1 > 0)
        return pmf_BV

    def _moments(self, pmf_BV: Float64) -> tuple[Float64, Float64]:
        """Mean, and Fano factor: variance / mean, 1 for a Poisson distribution."""
        mean_B = pmf_BV @ self._values
        variance_B = pmf_BV @ self._values.astype(np.float64) ** 2 - mean_B**2
        return mean_B, _ratio(variance_B, mean_B)

    @staticmethod
    def _part(pmf_BV: Float64, of_V: Bool) -> Float64:
        part_B: Float64 = pmf_BV[:, of_V].sum(1)
        return part_B


def _ratio(above_B: Float64, below_B: Float64) -> Float64:
    ratio_B: Float64 = np.divide(above_B, below_B, out=np.full(len(above_B), np.nan), where=below_B > 0)
    return ratio_B
