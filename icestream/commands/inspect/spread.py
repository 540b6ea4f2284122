"""Least, largest and quantiles of a stream of numbers, in bounded memory."""

from __future__ import annotations

import numpy as np

from common.unit_arrays import Array

_MOST_KEPT = 1 << 18


class Spread:
    """Least and largest are exact. Quantiles are of all numbers up to 262,144 of them, then of an even sample."""

    def __init__(self) -> None:
        self.num = 0
        self.least = np.inf
        self.largest = -np.inf
        self._every = 1
        self._kept: list[Array] = []
        self._num_kept = 0

    def add(self, values: Array) -> None:
        """Take in (N,) numbers."""
        if not len(values):
            return
        if values.dtype.kind != "f":
            values = values.astype(np.float64)  # a quantile may lie between two integers
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        taken = values[-self.num % self._every :: self._every].copy()
        self.num += len(values)
        self._kept.append(taken)
        self._num_kept += len(taken)
        while self._num_kept > _MOST_KEPT:  # every second of those that were kept
            self._kept = [np.concatenate(self._kept)[::2]]
            self._num_kept = len(self._kept[0])
            self._every *= 2

    def quantile(self, share: float) -> float:
        """The number below which that share of them lies. There must be one."""
        return float(np.quantile(np.concatenate(self._kept), share))
