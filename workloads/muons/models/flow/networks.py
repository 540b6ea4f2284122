"""Networks and losses of the flow, for a part of a microbatch, and the integration from noise to muons.

The flow is trained by conditional flow matching on straight lines (arXiv:2210.02747): between noise x0 at t = 0 and
the muons x1 of a real event at t = 1, the velocity is x1 - x0.

Shape suffixes: E events, P particles, F features, C conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base.averaged import AveragedWeights
from workloads.base.batch import Microbatch
from workloads.base.context import StepContext
from workloads.base.segments import Segments, sort_within_events, spread
from workloads.base.thin import counts_of
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.model import VelocityField
from workloads.muons.models.standardise import Standardise

_TIME, _NOISE = "flow_time", "flow_noise"
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class FlowEvents:
    """Input of the networks from a part of a microbatch."""

    conditions_EC: Tensor
    segments: Segments
    real_PF: Tensor
    """Standardised muons."""
    noise_PF: Tensor
    time_E: Tensor


class FlowNetworks:
    """Standardisation, count head, velocity field and its running mean."""

    def __init__(self, config: FlowConfig, context: StepContext) -> None:
        self.config = config
        self.device = device = context.device
        self._precision = context.precision
        with context.initial_weights():
            self.standardise = Standardise(config.network).to(device)
            self.count_head = MixtureCountHead(config.network).to(device)
            self.velocity = VelocityField(self.standardise.num_features, config.network).to(device)
        self.averaged = AveragedWeights(self.velocity, config.average_decay)

    def modules(self) -> dict[str, nn.Module]:
        """Modules by their name in a checkpoint."""
        return {
            "standardise": self.standardise,
            "count_head": self.count_head,
            "velocity": self.velocity,
            "velocity_average": self.averaged.average,
        }

    def with_noise(self, source: Microbatch, random: torch.Generator) -> Microbatch:
        """Microbatch with its noise in additional columns: each part has its own, wherever the microbatch is cut.

        Times of consecutive events differ by the golden ratio: any sequence of events covers [0, 1] evenly.
        """
        start = torch.rand((), device=self.device, generator=random, dtype=torch.float64)
        number_E = torch.arange(source.num_events, device=self.device, dtype=torch.float64)
        segments = Segments.from_offsets(source.offsets_E1, source.num_particles)
        noise_PF = draw_noise(segments, self.standardise.num_features, self.config.network.shared_noise, random)
        return replace(
            source,
            event_columns=source.event_columns | {_TIME: ((start + number_E * _GOLDEN) % 1).float()},
            particle_columns=source.particle_columns | {_NOISE: noise_PF},
        )

    def events(self, source: Microbatch) -> FlowEvents:
        """Input of the networks from ``source``, which has its noise."""
        segments = Segments.from_offsets(source.offsets_E1, source.num_particles, counts_of(source))
        muons_P3, noise_PF = source.particle_columns["muons"], source.particle_columns[_NOISE]
        real_PF = self.standardise.features(muons_P3)
        if self.config.pair_by_energy:
            real_PF = real_PF[sort_within_events(real_PF[:, 0], segments)]
            noise_PF = noise_PF[sort_within_events(noise_PF[:, 0], segments)]
        return FlowEvents(
            conditions_EC=self.standardise.conditions(source.event_columns["primary"]),
            segments=segments,
            real_PF=real_PF,
            noise_PF=noise_PF,
            time_E=source.event_columns[_TIME],
        )

    def flow_loss(self, source: Microbatch, velocity: VelocityField | None = None) -> Tensor:
        """Sum over events of N ** muon_weight × squared error of the velocity, mean over features and muons. -> ().

        ``velocity``: by default the trained weights.
        """
        part = self.events(source)
        weight_E = part.segments.sizes_E**self.config.muon_weight / part.segments.counts_E.clamp_min(1)
        of_event_E2 = torch.stack([part.time_E, weight_E], 1)
        time_P1, weight_P1 = spread(of_event_E2, part.segments).split(1, 1)
        between_PF = torch.lerp(part.noise_PF, part.real_PF, time_P1)
        with self._precision():
            velocity_PF = (velocity or self.velocity)(between_PF, part.time_E, part.conditions_EC, part.segments)
        error_PF = velocity_PF - (part.real_PF - part.noise_PF)
        loss: Tensor = (error_PF.square() * weight_P1).sum() / error_PF.shape[1]
        return loss

    def total_weight(self, source: Microbatch) -> float:
        """Sum of N ** muon_weight over the events with muons."""
        counts_E = np.diff(source.host_offsets_E1)
        return float((counts_E[counts_E > 0].astype(np.float64) ** self.config.muon_weight).sum())

    def count_loss(self, source: Microbatch) -> Tensor:
        """Loss of the count head, summed over events."""
        conditions_EC = self.standardise.conditions(source.event_columns["primary"])
        loss: Tensor = self.count_head.loss(conditions_EC, counts_of(source))
        return loss


def draw_noise(segments: Segments, num_features: int, shared: float, random: torch.Generator) -> Tensor:
    """Normal numbers of variance 1; the fraction ``shared`` of it is common to an event's muons. -> (P, F)."""
    device = segments.event_P.device
    of_event_EF = torch.randn(segments.num_events, num_features, device=device, generator=random)
    of_muon_PF = torch.randn(segments.num_particles, num_features, device=device, generator=random)
    noise_PF: Tensor = spread(of_event_EF * shared**0.5, segments) + of_muon_PF * (1 - shared) ** 0.5
    return noise_PF


def integrate(
    velocity: VelocityField, noise_PF: Tensor, conditions_EC: Tensor, segments: Segments, steps: int
) -> Tensor:
    """Features at t = 1 from noise at t = 0, by the midpoint rule. (P, F), (E, C) -> (P, F)."""
    features_PF = noise_PF
    step = 1 / steps
    time_E = conditions_EC.new_empty(segments.num_events)
    for number in range(steps):
        time_E.fill_(number * step)
        middle_PF = features_PF + step / 2 * velocity(features_PF, time_E, conditions_EC, segments)
        time_E.fill_((number + 0.5) * step)
        features_PF = features_PF + step * velocity(middle_PF, time_E, conditions_EC, segments)
    return features_PF
