"""First Wasserstein distance of weighted samples, in bins, for many sets of weights. Pure.

W1 is the area between two cumulative distributions, in the unit of the values: the mean distance by which probability
has to be moved. Values are sorted once; then each set of weights takes one running sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.muons.metrics.bundles import Float64, Int64


@dataclass(frozen=True)
class Values:
    """Numbers and the event of each: a muon has the weight and the bin of its event."""

    values: Float64
    event: Int64
    bin_E: Int64
    """Bin of each event; -1: left out."""


class BinnedWasserstein:
    """Mean over bins of W1 between ``a`` and ``b``. Each bin needs values of both."""

    def __init__(self, a: Values, b: Values, num_bins: int = 1) -> None:
        values, bins, events = [], [], []
        items = []
        for one, first_event in ((a, 0), (b, len(a.bin_E))):
            kept = one.bin_E[one.event] >= 0
            event = one.event[kept]
            values.append(one.values[kept])
            bins.append(one.bin_E[event])
            events.append(event + first_event)
            items.append(np.bincount(event, minlength=len(one.bin_E)))
        value, of_bin = np.concatenate(values), np.concatenate(bins)
        order = np.argsort(value)
        if num_bins > 1:  # small integers are sorted by their digits: much faster than np.lexsort
            order = order[np.argsort(of_bin[order].astype(np.min_scalar_type(num_bins)), kind="stable")]
        self._event = np.concatenate(events)[order]
        self._items_E = np.concatenate(items).astype(np.float64)
        self._step = np.diff(value[order])
        # At the end of a bin both distributions have reached 1: the running sum is 0 again for the next bin.
        self._step[np.diff(of_bin[order]) > 0] = 0.0
        bin_E = np.concatenate([np.maximum(a.bin_E, 0) * 2, np.maximum(b.bin_E, 0) * 2 + 1])
        self._side_E = bin_E
        self._num_bins = num_bins

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> Float64:
        """Distance for each of B sets of event weights; NaN where a bin has no weight."""
        return np.array([self._one(np.concatenate(both)) for both in zip(weights_a_BE, weights_b_BE, strict=True)])

    def _one(self, weight_E: Float64) -> float:
        total = np.bincount(self._side_E, weight_E * self._items_E, 2 * self._num_bins)
        if not (total > 0).all():
            return float("nan")
        total[1::2] *= -1
        difference = np.cumsum((weight_E / total[self._side_E])[self._event][:-1])
        return float(np.abs(difference, out=difference) @ self._step) / self._num_bins
