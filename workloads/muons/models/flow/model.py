"""Velocity field of the flow, for each muon of a partly noisy event.

Muons interact only through their event's context, as in EPiC networks (arXiv:2301.08128, arXiv:2310.00049): the cost is
linear in the number of muons, and a permutation of an event's muons permutes their velocities.

Shape suffixes: E events, P particles, F features, C conditions, D width, G width of the context.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.segments import Segments, pool, segment_argmax, spread
from workloads.muons.models.flow.config import FlowNetworkConfig
from workloads.muons.models.standardise import NUM_CONDITIONS


class VelocityField(nn.Module):
    """Velocity v(x, t, c, N) of each muon, in standardised features per unit of time."""

    wave_numbers: Tensor

    def __init__(self, num_features: int, config: FlowNetworkConfig) -> None:
        super().__init__()
        width, context = config.hidden, config.context
        self.pools = tuple(config.pooling.split("+"))
        self.register_buffer("wave_numbers", math.pi * torch.arange(1, config.frequencies + 1), persistent=False)
        num_known = NUM_CONDITIONS + 1 + config.frequencies
        self.muon_input = nn.Linear(num_features, width)
        self.known_input = nn.Linear(num_known, width, bias=False)
        self.layers = nn.ModuleList(
            _Exchange(width, context, num_known + (context if number else 0), len(self.pools))
            for number in range(config.layers)
        )
        self.output = nn.Linear(width, num_features)
        nn.init.zeros_(self.output.weight)

    def forward(self, features_PF: Tensor, time_E: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Velocities. (P, F), (E,) in [0, 1], (E, C) -> (P, F)."""
        size_E1 = segments.sizes_E.to(features_PF.dtype).log1p().unsqueeze(1) / 2
        waves_EK = torch.cos(time_E.unsqueeze(1) * self.wave_numbers)
        known_EK = torch.cat([conditions_EC, size_E1, waves_EK], 1)
        muons_PD = F.silu(self.muon_input(features_PF) + spread(self.known_input(known_EK), segments))
        context_EG = known_EK
        for layer in self.layers:
            muons_PD, new_EG = layer(muons_PD, context_EG, segments, self.pools)
            context_EG = torch.cat([known_EK, new_EG], 1)
        velocity_PF: Tensor = self.output(F.silu(muons_PD))
        return velocity_PF.to(features_PF.dtype)


class _Exchange(nn.Module):
    """Exchange layer: the muons of an event update its context, and the context updates the muons."""

    def __init__(self, width: int, context: int, num_known: int, num_pools: int) -> None:
        super().__init__()
        self.event_input = nn.Linear(num_pools * width + num_known, context)
        self.event_hidden = nn.Linear(context, context)
        self.muon_input = nn.Linear(width, width)
        self.context_input = nn.Linear(context, width, bias=False)
        self.muon_output = nn.Linear(width, width)

    def forward(
        self, muons_PD: Tensor, known_EK: Tensor, segments: Segments, pools: tuple[str, ...]
    ) -> tuple[Tensor, Tensor]:
        """Updated muons and context."""
        argmax_ED = segment_argmax(muons_PD, segments) if "max" in pools else None
        pooled_ED = pool(muons_PD, segments, pools, argmax_ED)
        context_EG = F.silu(self.event_input(torch.cat([pooled_ED, known_EK], 1)))
        context_EG = F.silu(self.event_hidden(context_EG))
        inner_PD = F.silu(self.muon_input(muons_PD) + spread(self.context_input(context_EG), segments))
        return muons_PD + self.muon_output(inner_PD), context_EG
