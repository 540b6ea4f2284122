"""Sampler of a trained flow: counts and muons of given primaries. See workloads.muons.generation.generator.

E events, P particles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.model import VelocityField
from workloads.muons.models.flow.networks import draw_noise, integrate
from workloads.muons.models.standardise import Standardise


class FlowSampler:
    """Standardisation, count head and the velocity field with the weights for generation."""

    def __init__(
        self, config: FlowConfig, standardise: Standardise, count_head: MixtureCountHead, velocity: VelocityField
    ) -> None:
        """Raises RuntimeError before the first training batch."""
        standardise.require_fit()
        self.config = config
        self.standardise = standardise
        self.count_head = count_head
        self.velocity = velocity

    @classmethod
    def from_state(cls, config: FlowConfig, task_state: dict[str, Any], device: torch.device) -> FlowSampler:
        """Sampler from the result of FlowTask.state_dict().

        Raises KeyError or RuntimeError if the networks differ, or before the first training batch.
        """
        standardise = Standardise(config.network).to(device)
        count_head = MixtureCountHead(config.network).to(device)
        velocity = VelocityField(standardise.num_features, config.network).to(device)
        networks = task_state["networks"]
        weights = "velocity_average" if config.average_decay > 0 else "velocity"
        for module, name in ((standardise, "standardise"), (count_head, "count_head"), (velocity, weights)):
            module.load_state_dict(networks[name])
            module.requires_grad_(False).eval()
        return cls(config, standardise, count_head, velocity)

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
        """See MuonGenerator. Waits for the device, for the number of muons and the events that have any."""
        present_E = counts_E > 0  # for the others even the context would be wasted
        primary_E4, counts_E = primary_E4[present_E], counts_E[present_E]
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        noise_PF = draw_noise(segments, self.standardise.num_features, self.config.network.shared_noise, random)
        conditions_EC = self.standardise.conditions(primary_E4)
        features_PF = integrate(self.velocity, noise_PF, conditions_EC, segments, self.config.sampling_steps)
        most = self.config.max_deviation
        return self.standardise.muons(features_PF.clamp(-most, most), random)

    @torch.no_grad()
    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor] | None:
        """See MuonGenerator."""
        return self.count_head.cdf(self.standardise.conditions(primary_E4), counts_E)
