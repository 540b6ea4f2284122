"""A model of one's own in the trainer: the number of muons of a bundle (docs/how-to/custom-model.md).

icestream simulate demo --events 20000
PYTHONPATH=examples icestream run -i demo --model count_muons:TRAINING --set trainer.own.hidden=64 --run-dir runs/counts
"""

import torch
from torch import Tensor, nn

from icestream import ModelSettings, ModuleTraining


class Settings(ModelSettings):
    """Settings `trainer.own`: the learning rate and others are there already."""

    hidden: int = 32
    """Width of the network."""


class CountNetwork(nn.Module):
    """Poisson distribution of the number of muons. E events."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, settings.hidden), nn.SiLU(), nn.Linear(settings.hidden, 1))

    def mean(self, primary_E4: Tensor) -> Tensor:
        """Mean number of muons. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m] -> (E,)."""
        energy, zenith, mass, depth = primary_E4.unbind(1)
        inputs = torch.stack([energy.log10() - 6, zenith.cos(), mass.clamp(min=1).log(), depth / 1000 - 2], 1)
        return nn.functional.softplus(self.layers(inputs).squeeze(1)) + 1e-6

    def forward(self, events) -> Tensor:
        """Loss of each event: minus the logarithm of its probability, without constants. -> (E,)."""
        counts_E = events.offsets_E1.diff()
        mean_E = self.mean(events.event_columns["primary"])
        return mean_E - counts_E * mean_E.log()


TRAINING = ModuleTraining(CountNetwork, Settings)
