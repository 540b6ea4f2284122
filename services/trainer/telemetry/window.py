"""Windowed mean over the last values, kept on the device: add and read in O(1), without a host sync.

The running sum in float64 is recomputed once per window, so that rounding errors do not accumulate.
"""

from __future__ import annotations

import torch
from torch import Tensor


class WindowedMean:
    """Mean of the last ``size`` values; NaN while one of them is not finite."""

    def __init__(self, size: int, device: torch.device) -> None:
        # One row per value: the value, or 0, and 1 if it is not finite. (A sum with an infinity would stay infinite.)
        self._values = torch.zeros(size, 2, dtype=torch.float64, device=device)
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Add a 0-dim value."""
        index = self._count % len(self._values)
        row = torch.stack([torch.nan_to_num(value, 0.0, 0.0, 0.0), ~value.isfinite()]).double()
        if index == 0 and self._count:
            self._values[0] = row
            self._sums = self._values.sum(0)
        else:
            self._sums += row - self._values[index]
            self._values[index] = row
        self._count += 1

    def mean(self) -> Tensor:
        """Mean, 0-dim; 0 before the first value."""
        filled = max(min(self._count, len(self._values)), 1)
        total, num_bad = self._sums.unbind()
        return torch.where(num_bad > 0, torch.nan, total / filled).float()

    def state_dict(self) -> dict[str, Tensor | int]:
        """State for the checkpoint."""
        return {"values": self._values, "sums": self._sums, "count": self._count}

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """Restore state_dict(), bit for bit."""
        values, sums, count = state["values"], state["sums"], state["count"]
        assert isinstance(values, Tensor)
        assert isinstance(sums, Tensor)
        assert isinstance(count, int)
        self._values.copy_(values)
        self._sums = sums.to(self._sums)
        self._count = count
