"""Model that learns the mean number of muons, and is slow after its first steps until there is a file.

So a run is still under way whenever a test disturbs it, on however fast a machine, and a step ends within a second.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from workloads.base.module_training import ModelSettings, ModuleTraining

FREE_PARTS = 8
SLOW_S = 1.0


class Settings(ModelSettings):
    """Settings `trainer.own`."""

    released: str = ""
    """File that ends the slowness."""


class MeanNetwork(nn.Module):
    """One number."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(()))
        self._released = Path(settings.released)
        self._parts = 0

    def forward(self, events) -> Tensor:  # type: ignore[no-untyped-def]
        """Squared distance to the number of muons of each event. -> (E,)."""
        self._parts += 1
        until_s = time.monotonic() + (SLOW_S if self._parts > FREE_PARTS else 0.0)
        while time.monotonic() < until_s and not self._released.exists():
            time.sleep(0.01)
        return (self.mean - events.offsets_E1.diff()).square()


TRAINING = ModuleTraining(MeanNetwork, Settings)
