"""Exported functions: a trained model as two functions of tensors, with standardisation and without randomness.

Shape suffixes: E events, P particles, F features, K mixture components.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.muons.export.inputs import FunctionInput
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.standardise import POSITION_SCALE_M, Standardise

GENERATOR_OUTPUTS = ("muons",)
COUNTS_INPUTS = ("primary",)
COUNTS_OUTPUTS = ("weights", "means", "shapes")


class GeneratorFunction(nn.Module):
    """Function from primaries, counts and random numbers to muons; ``forward`` takes ``inputs`` in this order."""

    inputs: tuple[FunctionInput, ...]

    def __init__(self, standardise: Standardise, network: nn.Module) -> None:
        super().__init__()
        self.standardise = standardise
        self.network = network

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(one.name for one in self.inputs)

    @abstractmethod
    def trained_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Features of the muons from the trained modules, as when they are generated. -> (P, F)."""

    @torch.no_grad()
    def trained_muons(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Muons from the trained modules for the same inputs, each module called separately. -> (P, 3)."""
        muons_P3 = self.standardise.muons(self.trained_features(inputs), torch.Generator())  # angles: see below
        if not self.standardise.symmetric:
            return muons_P3
        radius_P = torch.hypot(muons_P3[:, 1], muons_P3[:, 2])
        angle_P = inputs[self.names.index("azimuth")] * (2 * math.pi)
        return torch.stack([muons_P3[:, 0], radius_P * angle_P.cos(), radius_P * angle_P.sin()], 1)

    def _muons(self, features_PF: Tensor, azimuth_P: Tensor) -> Tensor:
        """Muons as from `Standardise.muons`, with a given azimuth in turns."""
        of = self.standardise
        raw_PF = features_PF * of.feature_spread_F + of.feature_mean_F
        energy_P = torch.pow(10.0, raw_PF[:, 0]) + of.energy_cut_gev
        if not of.symmetric:
            unused_P = 0 * azimuth_P  # keeps the same inputs for every model
            x_P, y_P = (raw_PF[:, 1:3].sinh() * POSITION_SCALE_M).unbind(1)
            return torch.stack([energy_P + unused_P, x_P, y_P], 1)
        radius_P = (torch.pow(10.0, raw_PF[:, 1]) - of.radius_offset_m).clamp_min(0)
        angle_P = azimuth_P * (2 * math.pi)
        return torch.stack([energy_P, radius_P * angle_P.cos(), radius_P * angle_P.sin()], 1)


class CountsFunction(nn.Module):
    """Function from primaries to the distribution of the number of muons: a mixture of K negative binomials.

    To draw N: a component k with the probabilities ``weights``, then a rate from a Gamma distribution of shape
    ``shapes[k]`` and mean ``means[k]``, then N from a Poisson distribution of that rate.
    """

    def __init__(self, standardise: Standardise, count_head: MixtureCountHead) -> None:
        super().__init__()
        self.standardise = standardise
        self.count_head = count_head

    def forward(self, primary_E4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixture: weights, means, shapes, each (E, K). Variance of a component: mean + mean² / shape."""
        mixture = self.count_head(self.standardise.conditions(primary_E4))
        return mixture.log_weights_EK.exp(), mixture.log_means_EK.exp(), mixture.log_shapes_EK.exp()


@dataclass(frozen=True)
class ModelFunctions:
    """Both functions of a model."""

    generator: GeneratorFunction
    counts: CountsFunction
