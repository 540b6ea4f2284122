"""Minimum, maximum and quantiles of a stream of numbers, in bounded memory."""

from __future__ import annotations

import numpy as np

from common.unit_arrays import Array

_MOST_KEPT = 1 << 18


class Spread:
    """Distribution of numbers: exact minimum and maximum, quantiles of up to 262,144 numbers or else an even sample."""

    def __init__(self) -> None:
        self.num = 0
        self.least = np.inf
        self.largest = -np.inf
        self._every = 1
        self._kept: list[Array] = []
        self._num_kept = 0

    def add(self, values: Array) -> None:
        """Add numbers. (N,)."""
        if not len(values):
            return
        if values.dtype.kind != "f":
            values = values.astype(np.float64)  # a quantile may be between two integers
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        taken = values[-self.num % self._every :: self._every].copy()
        self.num += len(values)
        self._kept.append(taken)
        self._num_kept += len(taken)
        while self._num_kept > _MOST_KEPT:  # keep every second number
            self._kept = [np.concatenate(self._kept)[::2]]
            self._num_kept = len(self._kept[0])
            self._every *= 2

    def quantile(self, share: float) -> float:
        """Number below which that share of them lies. At least one must have been added."""
        return float(np.quantile(np.concatenate(self._kept), share))
