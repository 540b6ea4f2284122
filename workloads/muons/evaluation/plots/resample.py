"""Bootstrap of histograms and means over showers. Pure.

Showers are assigned to groups; the bootstrap draws sums over groups, so that a picture of a million muons takes one
pass over them. E events, G groups, B bootstraps, X bins. Row 0 of every ``(1 + B, X)`` array is the data itself.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import Float64, Int64
from workloads.muons.purposes import MuonPurpose

GROUPS = 200
BOOTSTRAPS = 200


class Groups:
    """Groups of whole showers, and the number of times that each is drawn."""

    def __init__(self, shower_E: Int64, weight_E: Float64 | None, seed: int) -> None:
        random = numpy_stream(MuonPurpose.PICTURE_BOOTSTRAPS, seed)
        showers, shower_of_E = np.unique(shower_E, return_inverse=True)
        self._num = max(min(GROUPS, len(showers)), 1)
        self._group_E = (random.permutation(len(showers)) % self._num)[shower_of_E.reshape(-1)]
        self._weight_E = np.ones(len(shower_E)) if weight_E is None else weight_E
        drawn = random.multinomial(self._num, np.full(self._num, 1 / self._num), BOOTSTRAPS)
        self._times_DG = np.concatenate([np.ones((1, self._num)), drawn])

    def sums(self, bins: Int64, num_bins: int, events: Int64, values: npt.ArrayLike = 1.0) -> Float64:
        """Sum of weight × value in each bin, (1 + B, X). ``events``: event of each entry. Bins below 0: left out."""
        inside = (bins >= 0) & (bins < num_bins)
        events, bins = events[inside], bins[inside]
        weights = self._weight_E[events] * np.broadcast_to(values, inside.shape)[inside]
        flat = self._group_E[events] * num_bins + bins
        found: Float64 = self._times_DG @ np.bincount(flat, weights, self._num * num_bins).reshape(self._num, num_bins)
        return found

    def histogram(self, values: Float64, edges: Float64, events: Int64) -> Float64:
        """Weight in each bin, (1 + B, X)."""
        return self.sums(bins_of(values, edges), len(edges) - 1, events)

    @cached_property
    def num_events(self) -> Float64:
        """Weight of all events, (1 + B, 1)."""
        return self.sums(np.zeros(len(self._group_E), np.int64), 1, np.arange(len(self._group_E)))


def bins_of(values: Float64, edges: Float64) -> Int64:
    """Index of the bin of each value, the last edge included; -1 outside."""
    index = np.searchsorted(edges, values, side="right") - 1
    index[values == edges[-1]] = len(edges) - 2
    return np.where(index >= len(edges) - 1, -1, index).astype(np.int64)


def ratio(over_DX: Float64, under_DX: Float64) -> Float64:
    """Ratio, NaN where the denominator is 0. Each row has the same showers in both: common fluctuations cancel."""
    result = np.full(np.broadcast_shapes(over_DX.shape, under_DX.shape), np.nan)
    np.divide(over_DX, under_DX, out=result, where=np.broadcast_to(under_DX > 0, result.shape))
    return result


def band(values_DX: Float64) -> tuple[Float64, Float64, Float64]:
    """Value of the data, and one standard deviation of the bootstraps below and above it. (X,) each."""
    finite = np.where(np.isfinite(values_DX[1:]), values_DX[1:], np.nan)
    known = np.isfinite(finite).sum(0) > 1
    error = np.full(values_DX.shape[1], np.nan)
    error[known] = np.nanstd(finite[:, known], axis=0)
    return values_DX[0], values_DX[0] - error, values_DX[0] + error
