"""Exported generator of the WGAN.

Shape suffixes: E events, P particles, F features, Z noise, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.export.functions import GeneratorFunction
from workloads.muons.export.inputs import COUNTS, EVENT, PRIMARY, FunctionInput, azimuth
from workloads.muons.models.wgan.layers import LEAK
from workloads.muons.models.wgan.model import Generator, size_E1
from workloads.muons.models.wgan.sampler import WganSampler


class WganFunction(GeneratorFunction):
    """Function from primaries, counts and noise to muons."""

    network: Generator

    def __init__(self, sampler: WganSampler) -> None:
        super().__init__(sampler.standardise, sampler.generator)
        self.max_deviation = sampler.config.sampling.max_deviation
        z_global, z_local = sampler.generator.z_global, sampler.generator.z_local
        self.inputs = (
            PRIMARY,
            COUNTS,
            FunctionInput("z_global", "events", "normal", z_global, ": normal noise, one row an event"),
            FunctionInput("z_local", "particles", "normal", z_local, ": normal noise, one row a muon"),
            azimuth(used=sampler.standardise.symmetric),
            EVENT,
        )

    def forward(
        self, primary_E4: Tensor, counts_E: Tensor, z_global_EZ: Tensor, z_local_PZ: Tensor, azimuth_P: Tensor,
        event_P: Tensor,
    ) -> Tensor:  # fmt: skip
        """Muons. -> (P, 3) = [energy_gev, x_m, y_m].

        ``azimuth_P`` in [0, 1) is the angle in turns; a model that learned x and y ignores it. ``event_P``:
        row of each particle's event, not decreasing.
        """
        network = self.network
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

    def trained_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """See GeneratorFunction."""
        primary_E4, counts_E, z_global_EZ, z_local_PZ, _, _ = inputs
        segments = Segments.from_counts(counts_E, len(z_local_PZ))
        conditions_EC = self.standardise.conditions(primary_E4)
        features_PF: Tensor = self.network(conditions_EC, segments, (z_global_EZ, z_local_PZ))
        return features_PF.clamp(-self.max_deviation, self.max_deviation)
