"""A mean over the last values, kept on the device: O(1) a step and no host sync."""

from __future__ import annotations

import torch
from torch import Tensor


class WindowedMean:
    """Mean of the last ``size`` values."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._values = torch.zeros(size, device=device)
        self._sum = torch.zeros((), dtype=torch.float64, device=device)  # float64: it is never summed anew
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Note a value, 0-dim."""
        place = self._count % len(self._values)
        self._sum += value.double() - self._values[place].double()
        self._values[place] = value
        self._count += 1

    def mean(self) -> Tensor:
        """0-dim; 0 before the first value."""
        return (self._sum / max(min(self._count, len(self._values)), 1)).float()

    def state_dict(self) -> dict[str, Tensor | int]:
        """For the checkpoint."""
        return {"values": self._values, "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """Go on from state_dict()."""
        values, total, count = state["values"], state["sum"], state["count"]
        assert isinstance(values, Tensor)
        assert isinstance(total, Tensor)
        assert isinstance(count, int)
        self._values.copy_(values)
        self._sum.copy_(total)
        self._count = count
