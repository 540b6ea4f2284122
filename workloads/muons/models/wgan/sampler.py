"""Sampler of a trained WGAN: counts and muons of given primaries. See workloads.muons.generation.generator.

E events, P particles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.standardise import Standardise
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.inference import CPU_PIECES, GPU_PIECES, Inference
from workloads.muons.models.wgan.model import Generator


class WganSampler:
    """Standardisation, count head and the generator with the weights for generation; no critic."""

    def __init__(self, config: WganConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.standardise = Standardise(config.network).to(device)
        self.count_head = MixtureCountHead(config.network).to(device)
        self.generator = Generator(self.standardise.num_features, config.network).to(device)
        for module in (self.standardise, self.count_head, self.generator):
            module.requires_grad_(False).eval()
        self._inference = Inference(self.generator, self.standardise, config.sampling.max_deviation)

    @classmethod
    def from_state(cls, config: WganConfig, task_state: dict[str, Any], device: torch.device) -> WganSampler:
        """Sampler from the result of WganTask.state_dict().

        Raises KeyError or RuntimeError if the networks differ, or before the first training batch.
        """
        sampler = cls(config, device)
        networks = task_state["networks"]
        sampler.standardise.load_state_dict(networks["standardise"])
        sampler.count_head.load_state_dict(networks["count_head_average"])
        weights = "generator_average" if config.generator_average_decay > 0 else "generator"
        sampler.generator.load_state_dict(networks[weights])
        sampler.standardise.require_fit()
        return sampler

    @torch.no_grad()
    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """See MuonGenerator."""
        pieces = (GPU_PIECES if primary_E4.is_cuda else CPU_PIECES).counts
        conditions_EC = self.standardise.conditions(primary_E4)
        return torch.cat([self.count_head.sample(piece_EC, random) for piece_EC in conditions_EC.split(pieces)])

    def draw_muons(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """See MuonGenerator. Waits for the device once, for the counts."""
        return self._inference.draw(primary_E4, counts_E, random)

    @torch.no_grad()
    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """See MuonGenerator."""
        return self.count_head.cdf(self.standardise.conditions(primary_E4), counts_E)
