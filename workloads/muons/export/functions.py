"""Exported functions: a trained model as two functions of tensors, with standardisation and without randomness.

Shape suffixes: E events, P particles, Z noise, D width, K mixture components.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.standardise import POSITION_SCALE_M, Standardise
from workloads.muons.models.wgan.layers import LEAK
from workloads.muons.models.wgan.model import Generator, size_E1
from workloads.muons.models.wgan.sampler import WganSampler

GENERATOR_INPUTS = ("primary", "counts", "z_global", "z_local", "azimuth", "event")
GENERATOR_OUTPUTS = ("muons",)
COUNTS_INPUTS = ("primary",)
COUNTS_OUTPUTS = ("weights", "means", "shapes")


class GeneratorFunction(nn.Module):
    """Function from primaries, counts and noise to muons."""

    def __init__(self, sampler: WganSampler) -> None:
        super().__init__()
        self.standardise: Standardise = sampler.standardise
        self.generator: Generator = sampler.generator
        self.max_deviation = sampler.config.sampling.max_deviation

    def forward(
        self, primary_E4: Tensor, counts_E: Tensor, z_global_EZ: Tensor, z_local_PZ: Tensor, azimuth_P: Tensor,
        event_P: Tensor,
    ) -> Tensor:  # fmt: skip
        """Muons. -> (P, 3) = [energy_gev, x_m, y_m].

        ``azimuth_P`` in [0, 1) is the angle in turns; a model that learned x and y ignores it. ``event_P``:
        row of each particle's event, not decreasing.
        """
        network = self.generator
        context_ED = network.event_network(
            torch.cat([z_global_EZ, self.standardise.conditions(primary_E4), size_E1(counts_E, primary_E4.dtype)], 1)
        )
        linear = network.muon_input.linear
        of_event_DD, of_muon_DZ = linear.weight[:, : linear.out_features], linear.weight[:, linear.out_features :]
        of_event_ED = F.linear(context_ED, of_event_DD, linear.bias)
        of_muon_PD = F.linear(network.local_inputs(z_local_PZ), of_muon_DZ)
        muons_PD = F.leaky_relu(of_event_ED.index_select(0, event_P) + of_muon_PD, LEAK)
        features_PF = network.muon_network(muons_PD).clamp(-self.max_deviation, self.max_deviation)
        return self._muons(features_PF, azimuth_P)

    def _muons(self, features_PF: Tensor, azimuth_P: Tensor) -> Tensor:
        """Muons as from `Standardise.muons`, with a given azimuth."""
        of = self.standardise
        raw_PF = features_PF * of.feature_spread_F + of.feature_mean_F
        energy_P = torch.pow(10.0, raw_PF[:, 0])
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

    def __init__(self, sampler: WganSampler) -> None:
        super().__init__()
        self.standardise: Standardise = sampler.standardise
        assert isinstance(sampler.count_head, MixtureCountHead)
        self.count_head: MixtureCountHead = sampler.count_head

    def forward(self, primary_E4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixture: weights, means, shapes, each (E, K). Variance of a component: mean + mean² / shape."""
        mixture = self.count_head(self.standardise.conditions(primary_E4))
        return mixture.log_weights_EK.exp(), mixture.log_means_EK.exp(), mixture.log_shapes_EK.exp()
