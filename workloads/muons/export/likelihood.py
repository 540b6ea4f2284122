"""Exported generator of the likelihood model.

Shape suffixes: E events, P particles, F features, Z latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.export.functions import GeneratorFunction
from workloads.muons.export.inputs import COUNTS, EVENT, PRIMARY, FunctionInput, azimuth
from workloads.muons.models.likelihood.model import Draws, MuonDensities
from workloads.muons.models.likelihood.networks import known
from workloads.muons.models.likelihood.sampler import MAX_DEVIATION, LikelihoodSampler


class LikelihoodFunction(GeneratorFunction):
    """Function from primaries, counts and random numbers to muons."""

    network: MuonDensities

    def __init__(self, sampler: LikelihoodSampler) -> None:
        super().__init__(sampler.standardise, sampler.muons)
        latent, features = sampler.muons.latent, sampler.muons.num_features
        self.inputs = (
            PRIMARY,
            COUNTS,
            FunctionInput("z_uniform", "events", "uniform", 1, " in [0, 1): component of the event's z", chooses=True),
            FunctionInput("z_normal", "events", "normal", latent, ": normal noise of the event's z"),
            FunctionInput(
                "uniform",
                "particles",
                "uniform",
                features,
                " in [0, 1): components of each muon's numbers",
                chooses=True,
            ),
            FunctionInput("normal", "particles", "normal", features, ": normal noise of each muon's numbers"),
            azimuth(used=sampler.standardise.symmetric),
            EVENT,
        )

    def forward(
        self, primary_E4: Tensor, counts_E: Tensor, z_uniform_E1: Tensor, z_normal_EZ: Tensor, uniform_PF: Tensor,
        normal_PF: Tensor, azimuth_P: Tensor, event_P: Tensor,
    ) -> Tensor:  # fmt: skip
        """Muons. -> (P, 3) = [energy_gev, x_m, y_m]. See WganFunction."""
        particles_P = torch.arange(event_P.shape[0])
        segments = Segments(event_P, counts_E, counts_E.cumsum(0) - counts_E, counts_E, particles_P)
        draws = Draws(z_uniform_E1, z_normal_EZ, uniform_PF, normal_PF)
        features_PF = self.network.draw(known(self.standardise, primary_E4, counts_E), segments, draws)
        return self._muons(features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION), azimuth_P)

    def trained_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """See GeneratorFunction: without events that have no muons, as LikelihoodSampler draws."""
        primary_E4, counts_E, z_uniform_E1, z_normal_EZ, uniform_PF, normal_PF, _, _ = inputs
        rows_G = counts_E.nonzero().squeeze(1)
        segments = Segments.from_counts(counts_E[rows_G], len(uniform_PF))
        draws = Draws(z_uniform_E1[rows_G], z_normal_EZ[rows_G], uniform_PF, normal_PF)
        known_GK = known(self.standardise, primary_E4[rows_G], counts_E[rows_G])
        return self.network.draw(known_GK, segments, draws).clamp(-MAX_DEVIATION, MAX_DEVIATION)
