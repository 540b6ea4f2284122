"""Flat transformer: a token for each sensor with its first pulses side by side, and one that collects the answer.

The model of iceaggr (its version 2), for comparison, on the input, output and losses of `transformer`. A layer is
pre-norm attention with normalised queries and keys, then a network with a squared ReLU (arXiv:2109.08668), both of
which add nothing at the start: their last weights are 0. Each layer begins from learned parts of the present and of the
first tokens. Tokens have no order, and nothing is known of an event but its sensors.

Shape suffixes: E events, T sensors, K pulses of a sensor, F features, D width; R rows, E + T of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.segments import Segments
from workloads.direction.models.network import (
    LN_KAPPA,
    DirectionNetwork,
    EventInput,
    Prediction,
    SensorSet,
    bounded,
    head,
    sensor_set,
)
from workloads.direction.models.transformer import Attention, Padding

MAX_SENSORS = 128
"""Most sensors of an event that become tokens, chosen as those of `transformer`."""
PULSES = 16
"""Pulses of a sensor in its token, the first ones in time: 98 % of Kaggle's sensors have no more."""
_NUM_OF_SENSOR, _NUM_OF_PULSE = 4, 3
_INNER = 4
"""Width of a layer's inner network, in widths of the tokens."""


SIZES = {
    "0.18m": (60, 5, 4),
    "0.5m": (112, 7, 3),
    "1.6m": (160, 10, 5),
    "5m": (288, 9, 5),
    "10m": (320, 10, 8),
}
"""Width of the tokens, heads (which divide it) and layers, by the number of parameters."""


class FlatNetwork(DirectionNetwork):
    """Flat transformer."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.input = nn.Linear(_NUM_OF_SENSOR + _NUM_OF_PULSE * PULSES, width)
        self.answer = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(FlatLayer(width, heads) for _ in range(layers))
        self.head = head(width, 2 * width, 4)
        self.num_summary = width

    def forward(self, events: EventInput) -> Prediction:
        """Prediction from the token of the answer, which events without sensors have, too."""
        sensors = sensor_set(events, MAX_SENSORS)
        segments, num_events = sensors.segments, events.num_events
        rows = Segments.from_counts(segments.counts_E + 1, segments.num_particles + num_events)
        sensor_T = segments.particles_P + segments.event_P + 1  # behind the answers of this event and those before it
        tokens_TD = self.input(flat_features(events, sensors)).float()
        answer_RD = self.answer.expand(rows.num_particles, -1)
        first_RD = rms_norm(answer_RD.index_copy(0, sensor_T, tokens_TD))
        padding, tokens_RD = Padding.of(rows), first_RD
        for layer in self.layers:
            tokens_RD = layer(tokens_RD, first_RD, padding)
        is_answer_R1 = (rows.particles_P == rows.starts_E[rows.event_P]).unsqueeze(1)
        answers = Padding((), rows.event_P, is_answer_R1, rows.starts_E)  # all other rows count as padding
        answer_EF = rms_norm(answers.packed([tokens_RD.unsqueeze(0)]))
        output_E4 = self.head(answer_EF).float()
        p_E3 = output_E4[:, :3] * (3 * output_E4[:, 3:]).clamp(*LN_KAPPA).exp()
        return Prediction(p_E3, energy_E2=self.energy_of(answer_EF))


class FlatLayer(nn.Module):
    """Attention and the inner network of each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.parts = nn.Parameter(torch.tensor([1.0, 0.1]))
        """Scales of the present and of the first tokens."""
        self.attention = Attention(width, heads, biased=False)
        self.inner = nn.Linear(width, _INNER * width, bias=False)
        self.output = nn.Linear(_INNER * width, width, bias=False)
        for parameter in (self.attention.output.weight, self.attention.output.bias, self.output.weight):
            nn.init.zeros_(parameter)

    def forward(self, tokens_RD: Tensor, first_RD: Tensor, padding: Padding) -> Tensor:
        """Updated tokens."""
        tokens_RD = self.parts[0] * tokens_RD + self.parts[1] * first_RD
        tokens_RD = tokens_RD + self.attention(rms_norm(tokens_RD), padding, [])
        inner_RD: Tensor = self.output(F.relu(self.inner(rms_norm(tokens_RD))).square())
        return tokens_RD + inner_RD


def rms_norm(values_RD: Tensor) -> Tensor:
    """Rows divided by their root mean square."""
    return F.rms_norm(values_RD, values_RD.shape[-1:])


@torch.no_grad()
def flat_features(events: EventInput, sensors: SensorSet) -> Tensor:
    """Place and number of pulses of each sensor, then time, charge and flag of its first ones; 0 where it has none.

    -> (T, 4 + 3 K) float32.
    """
    counts_T, starts_T = (of[sensors.chosen_T] for of in (events.pulses.counts_E, events.pulses.starts_E))
    number_K = torch.arange(PULSES, device=counts_T.device)
    present_TK = number_K < counts_T.unsqueeze(1)
    pulse_TK = torch.where(present_TK, starts_T.unsqueeze(1) + number_K, 0)
    columns = (events.time_P / 1000, events.log10_charge_P, events.auxiliary_P.float() - 0.5)
    pulses_TK3 = torch.stack(columns, 1)[pulse_TK] * present_TK.unsqueeze(2)
    return bounded([sensors.position_T3 / 500, sensors.ln_pulses_T1 / 2, pulses_TK3.flatten(1)])
