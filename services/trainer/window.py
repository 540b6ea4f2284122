"""A mean over the last values, kept on the device: O(1) a step, whatever was seen before, and no host sync."""

from __future__ import annotations

import torch
from torch import Tensor


class WindowedMean:
    """Mean of the last ``size`` values. A value that is not finite counts until it leaves the window."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._values = torch.zeros(size, device=device)
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Note a value, 0-dim."""
        self._values[self._count % len(self._values)] = value
        self._count += 1

    def mean(self) -> Tensor:
        """0-dim; 0 before the first value."""
        filled = min(self._count, len(self._values))
        return self._values[:filled].mean() if filled else self._values.new_zeros(())

    def state_dict(self) -> dict[str, Tensor | int]:
        """For the checkpoint."""
        return {"values": self._values, "count": self._count}

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """Go on from state_dict()."""
        values, count = state["values"], state["count"]
        assert isinstance(values, Tensor)
        assert isinstance(count, int)
        self._values.copy_(values)
        self._count = count
