"""Model that learns the mean number of muons, and is slow until there is a file: a run is under way until then."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from workloads.base.module_training import ModelSettings, ModuleTraining

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

    def forward(self, events) -> Tensor:  # type: ignore[no-untyped-def]
        """Squared distance to the number of muons of each event. -> (E,)."""
        until_s = time.monotonic() + SLOW_S
        while time.monotonic() < until_s and not self._released.exists():
            time.sleep(0.01)
        return (self.mean - events.offsets_E1.diff()).square()


TRAINING = ModuleTraining(MeanNetwork, Settings)
