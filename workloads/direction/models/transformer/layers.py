"""Layer of the transformer: attention between sensors, exchange with the vector of their event, feed-forward network.

Shape suffixes: E events, T sensors, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.segments import Segments, pool, spread
from workloads.direction.models.transformer.attention import Attention
from workloads.direction.models.transformer.padding import Padding


class TransformerLayer(nn.Module):
    """Pre-norm layer. A vector of each event is its class token, at a linear cost (EPiC, arXiv:2301.08128)."""

    def __init__(self, width: int, heads: int, feed_forward: int, bias_terms: int) -> None:
        super().__init__()
        inner = feed_forward * width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, bias_terms)
        self.norm = nn.LayerNorm(width)
        self.event_input = nn.Linear(3 * width, width)
        self.sensor_input = nn.Linear(width, inner)
        self.condition = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)

    def forward(
        self, sensors_TD: Tensor, event_ED: Tensor, segments: Segments, padding: Padding, terms: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors."""
        sensors_TD = sensors_TD + self.attention(self.attention_norm(sensors_TD), padding, terms)
        normal_TD = self.norm(sensors_TD)
        event_ED = event_ED + F.gelu(self.event_input(torch.cat([event_ED, mean_and_max(normal_TD, segments)], 1)))
        inner_TD = F.gelu(self.sensor_input(normal_TD) + spread(self.condition(event_ED), segments))
        return sensors_TD + self.output(inner_TD), event_ED


class Head(nn.Module):
    """Outputs of events from their vectors and the mean and maximum of their sensors; near 0 at the start."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3 * width)
        self.inner = nn.Linear(3 * width, width)
        self.output = nn.Linear(width, num_outputs)
        nn.init.normal_(self.output.weight, std=0.01)  # the start: all directions are equally likely
        nn.init.zeros_(self.output.bias)

    def forward(self, sensors_TD: Tensor, event_ED: Tensor, segments: Segments) -> Tensor:
        """(T, D), (E, D) -> (E, outputs) float32."""
        inputs_EF = torch.cat([event_ED, mean_and_max(sensors_TD, segments)], 1)
        outputs: Tensor = self.output(F.gelu(self.inner(self.norm(inputs_EF)))).float()
        return outputs


def mean_and_max(values_PD: Tensor, segments: Segments) -> Tensor:
    """Mean and maximum over the rows of each segment, float32; 0 for an empty one. (P, D) -> (E, 2 D)."""
    return pool(values_PD.float(), segments, ("mean", "max"))


def two_layers(num_inputs: int, width: int) -> nn.Sequential:
    """Network with an inner layer of 2 × ``width``."""
    return nn.Sequential(nn.Linear(num_inputs, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
