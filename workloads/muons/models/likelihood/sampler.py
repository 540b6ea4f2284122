"""Sampler of a trained likelihood model. See workloads.muons.generation.generator.

E events, P particles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.likelihood.model import Draws, MuonDensities
from workloads.muons.models.likelihood.networks import known
from workloads.muons.models.standardise import Standardise

MAX_DEVIATION = 10.0
"""Bound on a generated feature, in standard deviations of the training data from their mean."""
_CPU_PIECE, _GPU_PIECE = 512, 65_536
"""Events with muons in one pass through the networks: on a CPU, their rows stay in the cache."""


class LikelihoodSampler:
    """Standardisation, count head and densities with the weights for generation."""

    def __init__(
        self, config: LikelihoodConfig, standardise: Standardise, count_head: MixtureCountHead, muons: MuonDensities
    ) -> None:
        """Raises RuntimeError before the first training batch."""
        standardise.require_fit()
        self.config = config
        self.standardise = standardise
        self.count_head = count_head
        self.muons = muons

    @classmethod
    def from_state(
        cls, config: LikelihoodConfig, task_state: dict[str, Any], device: torch.device
    ) -> LikelihoodSampler:
        """Sampler from the result of LikelihoodTask.state_dict().

        Raises KeyError or RuntimeError if the networks differ, or before the first training batch.
        """
        standardise = Standardise(config.network, config.network.energy_cut_gev).to(device)
        count_head = MixtureCountHead(config.network).to(device)
        muons = MuonDensities(standardise.num_features, config.network).to(device)
        networks = task_state["networks"]
        weights = "muons_average" if config.average_decay > 0 else "muons"
        for module, name in ((standardise, "standardise"), (count_head, "count_head_average"), (muons, weights)):
            module.load_state_dict(networks[name])
            module.requires_grad_(False).eval()
        return cls(config, standardise, count_head, muons)

    @property
    def device(self) -> torch.device:
        """See MuonGenerator."""
        return self.standardise.feature_mean_F.device

    @torch.no_grad()
    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """See MuonGenerator."""
        return self.count_head.sample(self.standardise.conditions(primary_E4), random)

    @torch.no_grad()
    def draw_muons(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """See MuonGenerator. Waits for the device once, for the counts."""
        counts = counts_E.cpu().numpy()
        rows = np.flatnonzero(counts)  # for the others even the context would be wasted
        muons = [torch.empty(0, 3, device=self.device)]
        size = _GPU_PIECE if counts_E.is_cuda else _CPU_PIECE
        for first in range(0, len(rows), size):
            piece = rows[first : first + size]
            index_E = torch.from_numpy(piece).to(self.device)
            segments = Segments.from_counts(counts_E[index_E], int(counts[piece].sum()))
            draws = Draws.of(segments, self.muons.latent, self.muons.num_features, random)
            features_PF = self.muons.draw(
                known(self.standardise, primary_E4[index_E], segments.sizes_E), segments, draws
            )
            muons.append(self.standardise.muons(features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION), random))
        return torch.cat(muons)

    @torch.no_grad()
    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """See MuonGenerator."""
        return self.count_head.cdf(self.standardise.conditions(primary_E4), counts_E)
