"""Transformer from pulses to sensors (T1) and from sensors to the event (T2), without classical fits.

T1 is a small network on each pulse, and its mean and maximum over the pulses of a sensor: most sensors have one pulse,
and attention between the pulses of a sensor would have nothing to do. T2 is attention between the sensors of an event.
Its first layers predict a direction, and the layers behind that see what the prediction leaves unexplained.

Shape suffixes: E events, T sensors, P pulses, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workloads.direction.models.events import EventInput
from workloads.direction.models.network import DirectionNetwork, Prediction
from workloads.direction.models.sensors import sensor_set
from workloads.direction.models.transformer.attention import interval_terms
from workloads.direction.models.transformer.config import TransformerConfig
from workloads.direction.models.transformer.features import (
    NUM_EVENT_FEATURES,
    num_pulse_features,
    num_sensor_features,
    token_inputs,
)
from workloads.direction.models.transformer.layers import Head, TransformerLayer, mean_and_max, two_layers
from workloads.direction.models.transformer.padding import Padding
from workloads.direction.models.transformer.refinement import Refinement

_LN_KAPPA = (-8.0, 11.0)
"""Bounds on the logarithm of a concentration: 11 is 0.2°."""


class TransformerNetwork(DirectionNetwork):
    """Transformer with one refinement of its prediction."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sizes = sizes = config.network
        width, hidden = sizes.hidden, sizes.pulse_hidden
        self.pulse_input = nn.Sequential(
            nn.Linear(num_pulse_features(sizes.frequencies), hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()
        )
        self.sensor_input = two_layers(num_sensor_features(sizes.frequencies) + 2 * hidden, width)
        self.event_input = two_layers(NUM_EVENT_FEATURES, width)
        self.layers = nn.ModuleList(
            TransformerLayer(
                width, sizes.heads, sizes.feed_forward, sizes.bias_terms if number < sizes.bias_layers else 0
            )
            for number in range(sizes.layers)
        )
        self.first_head = Head(width, 4)
        self.refinement = Refinement(width, sizes.frequencies)
        self.refining_layers = nn.ModuleList(
            TransformerLayer(width, sizes.heads, sizes.feed_forward, 0) for _ in range(sizes.refining_layers)
        )
        self.head = Head(width, 5)

    def blocks(self) -> Sequence[nn.Module]:
        """All layers with attention."""
        return [*self.layers, *self.refining_layers]

    def forward(self, events: EventInput) -> Prediction:
        """Refined prediction; auxiliary: the first one."""
        sensors = sensor_set(events, self.sizes.max_sensors)
        segments, inputs = sensors.segments, token_inputs(events, sensors, self.sizes.frequencies)
        of_pulses_TF = mean_and_max(self.pulse_input(inputs.pulses_PF), inputs.pulses)
        tokens_TD = self.sensor_input(torch.cat([inputs.sensors_TF, of_pulses_TF], 1)).float()
        event_ED = self.event_input(inputs.events_EF).float()
        padding = Padding.of(segments)
        terms = []
        if self.sizes.bias_layers:
            terms = interval_terms(sensors.position_T3, sensors.time_T1, self.sizes.bias_terms, padding)
        for layer in self.layers:
            tokens_TD, event_ED = layer(tokens_TD, event_ED, segments, padding, terms)
        first_E4 = self.first_head(tokens_TD, event_ED, segments)
        first_E3 = first_E4[:, :3] * (3 * first_E4[:, 3:]).clamp(*_LN_KAPPA).exp()
        kappa_E1, direction_E3 = _of_prediction(first_E3)
        tokens_TD, event_ED = self.refinement(tokens_TD, event_ED, sensors, direction_E3, kappa_E1)
        for layer in self.refining_layers:
            tokens_TD, event_ED = layer(tokens_TD, event_ED, segments, padding, terms)
        refined_E5 = self.head(tokens_TD, event_ED, segments)
        trust_E1, scale_E1 = (2 * refined_E5[:, :2]).clamp(-6, 5).exp().split(1, 1)
        # The correction is in units of the first prediction's error, about 1 / √κ.
        correction_E3 = 3 * scale_E1 * (1 + kappa_E1.sqrt()) * refined_E5[:, 2:]
        return Prediction(trust_E1 * kappa_E1 * direction_E3 + correction_E3, auxiliary=(first_E3,))


def _of_prediction(p_E3: Tensor) -> tuple[Tensor, Tensor]:
    """Concentration and direction of the first prediction, without gradient: it learns from its own loss alone.

    (E, 3) -> (E, 1), (E, 3).
    """
    p_E3 = p_E3.detach()
    kappa_E1 = (p_E3.square().sum(1, keepdim=True) + 1e-6).sqrt()
    return kappa_E1, p_E3 / kappa_E1
