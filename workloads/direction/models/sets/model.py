"""Network of sets: two branches over the sensors of an event, and the product of their distributions.

The product of two von Mises-Fisher distributions is one, and its p is the sum of theirs. The track fit is one expert,
with a trust that branch B predicts; branch A is the other. Branch A learns from its own loss alone: a gradient through
the product would teach it nothing where the fit is good already.

Shape suffixes: E events, T sensors, D width, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.segments import Segments, pool, spread
from workloads.direction.models.events import EventInput
from workloads.direction.models.network import DirectionNetwork, Prediction
from workloads.direction.models.sets.config import SetsConfig
from workloads.direction.models.sets.features import (
    NUM_EVENT_A,
    NUM_EVENT_B,
    NUM_SENSOR_A,
    NUM_SENSOR_B,
    branch_inputs,
)

_POOLS = ("mean", "max")
_LN_KAPPA = (-8.0, 11.0)
"""Bounds on the logarithm of a concentration: 11 is 0.2°."""
_NUM_FOUND = 6
"""Features of branch B from the prediction of branch A."""


class SetsNetwork(DirectionNetwork):
    """Branches A (light) and B (trust in the track fit)."""

    needs_fits = True

    def __init__(self, config: SetsConfig) -> None:
        super().__init__()
        network = config.network
        self.max_sensors = network.max_sensors
        self.light = _Branch(NUM_SENSOR_A, NUM_EVENT_A, network.hidden, network.layers, 4)
        self.trust = _Branch(NUM_SENSOR_B, NUM_EVENT_B + _NUM_FOUND, network.trust_hidden, network.trust_layers, 5)

    def blocks(self) -> Sequence[nn.Module]:
        """Exchange layers of both branches."""
        return [*self.light.layers, *self.trust.layers]

    def forward(self, events: EventInput) -> Prediction:
        """Product of both experts; auxiliary: branch A alone."""
        inputs = branch_inputs(events, self.max_sensors)
        light_E4 = self.light(inputs.sensors_a_TF, inputs.events_a_EF, inputs.segments).float()
        light_E3 = light_E4[:, :3] * (3 * light_E4[:, 3:]).clamp(*_LN_KAPPA).exp()
        known_E3, track_E3 = light_E3.detach(), inputs.track_E3
        events_b_EF = torch.cat([inputs.events_b_EF, _found(known_E3, track_E3)], 1)
        trust_E5 = self.trust(inputs.sensors_b_TF, events_b_EF, inputs.segments).float()
        kappa_E1 = (3 * trust_E5[:, :1] + 3).clamp(*_LN_KAPPA).exp()
        # The fit is corrected in units of its own error.
        fit_E3 = kappa_E1 * track_E3 + kappa_E1.sqrt() * trust_E5[:, 2:]
        return Prediction(known_E3 * (2 * trust_E5[:, 1:2]).clamp(-6, 3).exp() + fit_E3, auxiliary=(light_E3,))


def _found(p_E3: Tensor, track_E3: Tensor) -> Tensor:
    """Prediction of branch A, beside the track fit. -> (E, 6)."""
    kappa_E1 = torch.linalg.vector_norm(p_E3, dim=1, keepdim=True).clamp_min(1e-3)
    unit_E3 = p_E3 / kappa_E1
    cosine_E1 = (unit_E3 * track_E3).sum(1, keepdim=True)
    apart_E1 = torch.linalg.vector_norm(unit_E3 - track_E3, dim=1, keepdim=True)
    return torch.cat([unit_E3, kappa_E1.log() / 3, cosine_E1, apart_E1], 1)


class _Branch(nn.Module):
    """EPiC network (arXiv:2301.08128): sensors meet in one vector of their event only, at a linear cost."""

    def __init__(self, num_sensor: int, num_event: int, width: int, layers: int, num_outputs: int) -> None:
        super().__init__()
        self.sensor_input = _two_layers(num_sensor, width)
        self.event_input = _two_layers(num_event, width)
        self.layers = nn.ModuleList(_Exchange(width) for _ in range(layers))
        self.head = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, num_outputs)
        )
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.01)  # the start: all directions are equally likely
        nn.init.zeros_(last.bias)

    def forward(self, sensors_TF: Tensor, events_EF: Tensor, segments: Segments) -> Tensor:
        """Outputs of each event. (T, F), (E, F) -> (E, outputs)."""
        sensors_TD, event_ED = self.sensor_input(sensors_TF), self.event_input(events_EF)
        for layer in self.layers:
            sensors_TD, event_ED = layer(sensors_TD, event_ED, segments)
        outputs: Tensor = self.head(torch.cat([event_ED, pool(sensors_TD, segments, ("mean",))], 1))
        return outputs


class _Exchange(nn.Module):
    """Exchange layer: the sensors of an event update its vector, and that updates the sensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.event_input = nn.Linear(3 * width, width)
        self.sensor_input = nn.Linear(width, 2 * width)
        self.condition = nn.Linear(width, 2 * width)
        self.output = nn.Linear(2 * width, width)

    def forward(self, sensors_TD: Tensor, event_ED: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors."""
        normal_TD = self.norm(sensors_TD)
        pooled_ED = pool(normal_TD, segments, _POOLS)
        event_ED = event_ED + F.gelu(self.event_input(torch.cat([event_ED, pooled_ED], 1)))
        inner_TD = F.gelu(self.sensor_input(normal_TD) + spread(self.condition(event_ED), segments))
        return sensors_TD + self.output(inner_TD), event_ED


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
