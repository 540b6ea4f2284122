"""Transformer from pulses to sensors (T1) and from sensors to the event (T2), without classical fits.

T1 is a small network on each pulse, and its mean and maximum over the pulses of a sensor: most sensors have one pulse,
and attention between the pulses of a sensor would have nothing to do. T2 is attention between the sensors of an event.
Its first layers predict a direction, and the layers behind that see what the prediction leaves unexplained.

Shape suffixes: E events, T sensors, P pulses, D width, H heads, W width of a head, F features, K terms or wavelengths;
of padded rows: G events of a group, N sensors of its longest event, R rows of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.segments import Segments, segment_sum, spread
from workloads.direction.geometry import LIGHT_SPEED_M_NS
from workloads.direction.models.network import (
    LN_KAPPA,
    NUM_OF_WAVES,
    DirectionNetwork,
    EventInput,
    Exchange,
    Prediction,
    SensorSet,
    bounded,
    head,
    ln_light,
    mean_and_max,
    sensor_set,
    two_layers,
    waves,
)

MAX_SENSORS = 256
"""Most sensors of an event that become tokens: those with clean pulses first, by charge, then those nearest to them. An
event's summary has all its sensors."""
_PULSE_HIDDEN = 32
"""Width of the network on single pulses. Its mean and maximum over a sensor's pulses enter the sensor's token."""
_NUM_OF_PULSE, _NUM_OF_SENSOR, _NUM_OF_EVENT = 4 + NUM_OF_WAVES, 22 + 4 * NUM_OF_WAVES, 17
"""Features of pulses, sensors and events."""
_NUM_OF_POINT, _NUM_OF_TRACK = 12, 11
"""Features of the refinement besides waves."""
_BIASED_LAYERS, _BIAS_TERMS = 1, 8
"""Layers, from the first one on, whose attention is biased by the space-time interval between two sensors, and
functions of the interval that the bias is a sum of."""
_INTERVAL_M = 300.0
_LARGEST_INTERVAL = 2.0
"""Centre of the last term of the bias, in units of _INTERVAL_M; the first one's is minus this."""
_STEP_M = _STEP_NS = 100.0
"""Unit of the predicted shifts of points and times."""
_LN_WEIGHT = 10.0
"""Bound on the logarithm of a sensor's weight."""
_GROWTH, _STEP = 1.3, 8
_PAIRS_OF_ONE_GROUP = 1 << 24
"""Most padded pairs of sensors for which a GPU has all events in one group: 0.5 GB of the bias's terms."""


SIZES = {
    "0.18m": (48, 4, 2, 2),
    "0.5m": (64, 4, 5, 3),
    "1.6m": (128, 8, 3, 3),
    "5m": (192, 12, 6, 3),
    "10m": (288, 18, 5, 3),
}
"""Width of the tokens, heads (which divide it), and layers before and behind the first prediction, by the number of
parameters. Those behind it see how light and times of the sensors differ from the prediction."""


class TransformerNetwork(DirectionNetwork):
    """Transformer with one refinement of its prediction."""

    def __init__(self, width: int, heads: int, layers: int, refining_layers: int) -> None:
        super().__init__()
        self.pulse_input = nn.Sequential(
            nn.Linear(_NUM_OF_PULSE, _PULSE_HIDDEN), nn.GELU(), nn.Linear(_PULSE_HIDDEN, _PULSE_HIDDEN), nn.GELU()
        )
        self.sensor_input = two_layers(_NUM_OF_SENSOR + 2 * _PULSE_HIDDEN, width)
        self.event_input = two_layers(_NUM_OF_EVENT, width)
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, biased=number < _BIASED_LAYERS) for number in range(layers)
        )
        self.first_head = head(3 * width, width, 4)
        self.refinement = _Refinement(width)
        self.refining_layers = nn.ModuleList(
            TransformerLayer(width, heads, biased=False) for _ in range(refining_layers)
        )
        self.head = head(3 * width, width, 5)
        self.num_summary = 3 * width

    def forward(self, events: EventInput) -> Prediction:
        """Refined prediction; auxiliary: the first one."""
        sensors = sensor_set(events, MAX_SENSORS)
        segments = sensors.segments
        pulses, pulses_PF, sensors_TF, events_EF = token_inputs(events, sensors)
        of_pulses_TF = mean_and_max(self.pulse_input(pulses_PF), pulses)
        tokens_TD = self.sensor_input(torch.cat([sensors_TF, of_pulses_TF], 1)).float()
        event_ED = self.event_input(events_EF).float()
        padding = Padding.of(segments)
        terms = interval_terms(sensors.position_T3, sensors.time_T1, padding)
        for layer in self.layers:
            tokens_TD, event_ED = layer(tokens_TD, event_ED, segments, padding, terms)
        first_E4 = self.first_head(_summed_up(tokens_TD, event_ED, segments)).float()
        first_E3 = first_E4[:, :3] * (3 * first_E4[:, 3:]).clamp(*LN_KAPPA).exp()
        known_E3 = first_E3.detach()  # the first prediction learns from its own loss alone
        kappa_E1 = (known_E3.square().sum(1, keepdim=True) + 1e-6).sqrt()
        direction_E3 = known_E3 / kappa_E1
        tokens_TD, event_ED = self.refinement(tokens_TD, event_ED, sensors, direction_E3, kappa_E1)
        for layer in self.refining_layers:
            tokens_TD, event_ED = layer(tokens_TD, event_ED, segments, padding, terms)
        summary_EF = _summed_up(tokens_TD, event_ED, segments)
        refined_E5 = self.head(summary_EF).float()
        trust_E1, scale_E1 = (2 * refined_E5[:, :2]).clamp(-6, 5).exp().split(1, 1)
        # The correction is in units of the first prediction's error, about 1 / √κ.
        correction_E3 = 3 * scale_E1 * (1 + kappa_E1.sqrt()) * refined_E5[:, 2:]
        p_E3 = trust_E1 * kappa_E1 * direction_E3 + correction_E3
        return Prediction(p_E3, (first_E3,), self.energy_of(summary_EF))


# ---- Layers.


class TransformerLayer(nn.Module):
    """Pre-norm layer: attention, and an exchange with the vector of each event, which is its class token."""

    def __init__(self, width: int, heads: int, *, biased: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, biased=biased)
        self.exchange = Exchange(width)

    def forward(
        self, sensors_TD: Tensor, event_ED: Tensor, segments: Segments, padding: Padding, terms: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors."""
        sensors_TD = sensors_TD + self.attention(self.attention_norm(sensors_TD), padding, terms)
        updated: tuple[Tensor, Tensor] = self.exchange(sensors_TD, event_ED, segments)
        return updated


def _summed_up(sensors_TD: Tensor, event_ED: Tensor, segments: Segments) -> Tensor:
    """Return vectors of events beside the mean and maximum of their sensors. (T, D), (E, D) -> (E, 3 D)."""
    return torch.cat([event_ED, mean_and_max(sensors_TD, segments)], 1)


class Attention(nn.Module):
    """Multi-head attention with normalised queries and keys (QK-norm, arXiv:2010.04245)."""

    def __init__(self, width: int, heads: int, *, biased: bool) -> None:
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * width)
        self.query_norm = nn.RMSNorm(width // heads)
        self.key_norm = nn.RMSNorm(width // heads)
        self.bias = nn.Linear(_BIAS_TERMS, heads, bias=False) if biased else None
        if self.bias is not None:
            nn.init.zeros_(self.bias.weight)
        self.output = nn.Linear(width, width)

    def forward(self, sensors_TD: Tensor, padding: Padding, terms: list[Tensor]) -> Tensor:
        """Values of an event's sensors, weighted by attention. (T, D), (G, N, N, K) for each group -> (T, D)."""
        if not padding.groups:
            return sensors_TD  # no sensors in any event
        query_THW, key_THW, value_THW = self.input(sensors_TD).unflatten(1, (3, self.heads, -1)).unbind(1)
        query_THW, key_THW = (
            norm(of_THW.float()).to(value_THW.dtype)
            for norm, of_THW in ((self.query_norm, query_THW), (self.key_norm, key_THW))
        )
        all_THW = torch.stack([query_THW, key_THW, value_THW], 1)
        results = []
        for place, rows_GND in enumerate(padding.padded(all_THW.flatten(1))):
            query, key, value = rows_GND.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (G, H, N, W)
            mask = padding.groups[place][:, None, None, :]
            if self.bias is not None:
                mask = self.bias(terms[place]).permute(0, 3, 1, 2).masked_fill(~mask, -torch.inf).to(query.dtype)
            result_GHNW = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            results.append(result_GHNW.transpose(1, 2).flatten(2))
        output_TD: Tensor = self.output(padding.packed(results))
        return output_TD


@torch.no_grad()
def interval_terms(position_T3: Tensor, time_T1: Tensor, padding: Padding) -> list[Tensor]:
    """Functions of the space-time interval of two sensors. (T, 3) m, (T, 1) ns -> (G, N, N, K) for each group.

    The interval is s = ±√|c²Δt² − Δx²|, positive if light could connect both pulses in a vacuum, as in the attention
    bias of IceMix (arXiv:2310.15674, second place of the Kaggle competition). The terms are Gaussians of s, at
    equidistant centres, in place of sines.
    """
    place_T4 = torch.cat([position_T3, time_T1 * LIGHT_SPEED_M_NS], 1) / _INTERVAL_M
    centre_K = torch.linspace(-_LARGEST_INTERVAL, _LARGEST_INTERVAL, _BIAS_TERMS, device=place_T4.device)
    inverse_width = _BIAS_TERMS / (2 * _LARGEST_INTERVAL)
    terms = []
    for place_GN4 in padding.padded(place_T4):
        square_GNN4 = (place_GN4.unsqueeze(2) - place_GN4.unsqueeze(1)).square()
        square_GNN = square_GNN4[..., 3] - square_GNN4[..., :3].sum(-1)
        interval_GNN1 = (square_GNN.sign() * square_GNN.abs().sqrt()).unsqueeze(3)
        terms.append((-((interval_GNN1 - centre_K) * inverse_width).square()).exp())
    return terms


# ---- Padding of packed rows to rectangles, for attention alone: all other layers work on packed rows. Events are
# padded in groups of similar length, so that a long event doesn't pad all others.


@dataclass(frozen=True)
class Padding:
    """Places of the sensors in the padded groups; events without sensors are in none."""

    groups: tuple[Tensor, ...]
    """(G, N) bool of the events of similar length: False where padded."""
    source_R: Tensor
    """(R,) int64: the sensor of a padded row, 0 where padded."""
    present_R1: Tensor
    """(R, 1) bool: False where padded."""
    place_T: Tensor
    """(T,) int64: the padded row of a sensor."""

    @classmethod
    def of(cls, segments: Segments) -> Padding:
        """Padding for segments. Reads the lengths of the events from the device: the host waits once."""
        device, num_sensors = segments.event_P.device, segments.num_particles
        counts_E = segments.counts_E.cpu()
        on_cpu = device.type == "cpu"
        groups, sources = [], [torch.empty(0, dtype=torch.int64, device=device)]
        for of_group in _groups(counts_E, one=not on_cpu):
            longest = int(counts_E[of_group].max())
            events_G = of_group.to(device)
            inside_N = torch.arange(longest, device=device)
            present_GN = inside_N < segments.counts_E[events_G].unsqueeze(1)
            source_GN = torch.where(present_GN, segments.starts_E[events_G].unsqueeze(1) + inside_N, 0)
            groups.append(present_GN)
            sources.append(source_GN.flatten())
        source_R = torch.cat(sources)
        present_R = torch.cat([torch.empty(0, dtype=torch.bool, device=device), *(of.flatten() for of in groups)])
        rows_T = (
            present_R.nonzero().squeeze(1) if on_cpu else torch.nonzero_static(present_R, size=num_sensors).squeeze(1)
        )
        place_T = torch.empty(num_sensors, dtype=torch.int64, device=device)
        place_T[source_R[rows_T]] = rows_T
        return cls(tuple(groups), source_R, present_R.unsqueeze(1), place_T)

    def padded(self, rows_TD: Tensor) -> list[Tensor]:
        """Rows of each group, arbitrary where padded. (T, D) -> (G, N, D) for each group.

        Results must not depend on padded rows: their gradient is not propagated.
        """
        padded_RD: Tensor = _Gather.apply(rows_TD, self.source_R, self.place_T, None, self.present_R1)
        parts = padded_RD.split([present_GN.numel() for present_GN in self.groups])
        return [part.unflatten(0, of.shape) for part, of in zip(parts, self.groups, strict=True)]

    def packed(self, groups_GND: Sequence[Tensor]) -> Tensor:
        """Rows of all sensors, in their order. (G, N, D) for each group -> (T, D). There must be a group."""
        padded_RD = torch.cat([group_GND.flatten(0, 1) for group_GND in groups_GND])
        packed_TD: Tensor = _Gather.apply(padded_RD, self.place_T, self.source_R, self.present_R1, None)
        return packed_TD


def _groups(counts_E: Tensor, *, one: bool) -> Iterator[Tensor]:
    """Events with sensors, of similar length each. ``one``: all at once, as small kernels cost a GPU more than padding
    does, unless a long event would pad too many others."""
    (present,) = (counts_E > 0).nonzero(as_tuple=True)
    if len(present) == 0:
        return
    most = int(counts_E.max())
    if one and len(present) * most**2 <= _PAIRS_OF_ONE_GROUP:
        yield present
        return
    # Longest events of the groups: 8, 19, 33, 51, 75, … A call costs about as much as padding a few short ones by 8.
    lengths = [_STEP]
    while lengths[-1] < most:
        lengths.append(math.ceil(_GROWTH * lengths[-1]) + _STEP)
    group_of = torch.bucketize(counts_E[present], torch.tensor(lengths))
    order = group_of.argsort(stable=True)
    yield from (events for events in present[order].split(group_of.bincount().tolist()) if len(events))


class _Gather(torch.autograd.Function):
    """Padding of rows, or its transpose, for gradients that are 0 where padded.

    Both directions read whole rows, which is faster than adding them up, and deterministic on CUDA.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, index: Tensor, back: Tensor, present: Tensor | None, present_after: Tensor | None
    ) -> Tensor:
        """Return the rows ``index``; ``back`` leads from there to these. ``present``: False where rows are padded."""
        ctx.save_for_backward(index, back, present, present_after)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        index, back, present, present_after = ctx.saved_tensors
        rows: Tensor = _Gather.apply(gradients[0], back, index, present_after, present)
        return rows if present is None else rows * present, None, None, None, None


# ---- Features for the first layers: nothing but what was measured.


@torch.no_grad()
def token_inputs(events: EventInput, sensors: SensorSet) -> tuple[Segments, Tensor, Tensor, Tensor]:
    """Assignment of the pulses to the chosen sensors, and features of these pulses, sensors and events, float32."""
    clean_T1 = 1 - sensors.auxiliary_T1
    charge_T1 = torch.pow(10, sensors.log10_charge_T1)
    # The charge of sensors without clean pulses counts next to nothing, unless there is no other.
    centre_E4 = _weighted_mean(
        torch.cat([sensors.position_T3, sensors.time_T1], 1), charge_T1 * (clean_T1 + 1e-3), sensors.segments
    )
    pulses, pulses_PF = _of_pulses(events, sensors)
    events_EF = bounded([sensors.summary_E8, centre_E4[:, :3] / 500, _shape(sensors, clean_T1)])
    return pulses, pulses_PF, _of_sensors(sensors, centre_E4), events_EF


def _of_pulses(events: EventInput, sensors: SensorSet) -> tuple[Segments, Tensor]:
    """Pulses of the chosen sensors, and their features."""
    counts_T, first_T = (of[sensors.chosen_T] for of in (events.pulses.counts_E, events.pulses.starts_E))
    pulses = Segments.from_counts(counts_T, int(counts_T.sum()))
    shift_T = first_T - pulses.starts_E
    pulse_P = torch.arange(pulses.num_particles, device=counts_T.device) + shift_T[pulses.event_P]
    time_P1 = events.time_P[pulse_P].unsqueeze(1)
    delay_P1 = time_P1 - sensors.time_T1[pulses.event_P]
    columns = [
        *(delay_P1 / 300, (delay_P1 / 20).asinh() / 3),
        *(events.log10_charge_P[pulse_P].unsqueeze(1), events.auxiliary_P[pulse_P].float().unsqueeze(1) - 0.5),
        waves(time_P1, 40, 5000),
    ]
    return pulses, bounded(columns)


def _of_sensors(sensors: SensorSet, centre_E4: Tensor) -> Tensor:
    """Sensors as seen from the centre of the light. -> (T, _NUM_OF_SENSOR)."""
    centre_T3, centre_ns_T1 = spread(centre_E4, sensors.segments).split([3, 1], 1)
    offset_T3 = sensors.position_T3 - centre_T3
    distance_T1 = torch.linalg.vector_norm(offset_T3, dim=1, keepdim=True)
    unit_T3 = offset_T3 / distance_T1.clamp_min(1)
    light_T1 = ln_light(sensors.log10_charge_T1, distance_T1, sensors.medium)
    columns = [
        *(unit_T3, light_T1, light_T1 * unit_T3),
        *(sensors.position_T3 / 500, offset_T3 / 200, distance_T1 / 200),
        *(sensors.time_T1 / 1000, (sensors.time_T1 - centre_ns_T1) / 1000),
        *(sensors.log10_charge_T1, sensors.auxiliary_T1 - 0.5, sensors.ln_pulses_T1 / 2),
        *(sensors.median_T1 / 300, sensors.mean_T1 / 300, sensors.last_T1 / 1000),
        *(waves(sensors.position_T3, 20, 1500), waves(sensors.time_T1, 40, 5000)),
    ]
    return bounded(columns)


def _shape(sensors: SensorSet, clean_T1: Tensor) -> Tensor:
    """Covariance of the positions of clean sensors: xx, yy, zz, xy, yz, zx, as a signed logarithm. -> (E, 6)."""
    offset_T3 = sensors.position_T3 - spread(
        _weighted_mean(sensors.position_T3, clean_T1 + 1e-3, sensors.segments), sensors.segments
    )
    products_T6 = torch.cat([offset_T3.square(), offset_T3 * offset_T3.roll(-1, 1)], 1) / 200**2
    covariance_E6 = _weighted_mean(products_T6, clean_T1 + 1e-3, sensors.segments)
    return covariance_E6.sign() * covariance_E6.abs().log1p()


def _weighted_mean(values_TD: Tensor, weight_T1: Tensor, segments: Segments) -> Tensor:
    """Mean over each event, 0 for an empty one. (T, D), (T, 1) -> (E, D)."""
    sums_ED = segment_sum(torch.cat([values_TD * weight_T1, weight_T1], 1), segments)
    return sums_ED[:, :-1] / sums_ED[:, -1:].clamp_min(1e-6)


# ---- Refinement.


class _Refinement(nn.Module):
    """Update of sensors and event vectors by what a first prediction leaves unexplained, for the layers behind it.

    The network predicts two hypotheses about the source of the light: a point (cascade), and a track in the first
    predicted direction. Differences of times and light from both enter the tokens. No classical fit: points and times
    come from weights of the sensors, which are learned with everything else.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Linear(width, 2)
        self.shifts = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 5))
        self.sensor_input = two_layers(_NUM_OF_POINT + _NUM_OF_TRACK + 2 * NUM_OF_WAVES, width)
        self.event_input = nn.Linear(4, width)
        for name in ("2.weight", "2.bias"):
            nn.init.zeros_(self.shifts.get_parameter(name))

    def forward(
        self, sensors_TD: Tensor, event_ED: Tensor, sensors: SensorSet, direction_E3: Tensor, kappa_E1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors. ``direction``, ``kappa``: unit vectors and |p| of the first prediction."""
        of_point_T1, of_track_T1 = self._weights(sensors_TD, sensors)
        inputs_EF = torch.cat([event_ED, segment_sum(of_point_T1 * sensors_TD.float(), sensors.segments)], 1)
        shifts_E5 = self.shifts(inputs_EF).float()
        point_E3 = _STEP_M * shifts_E5[:, :3]
        features = [
            *_of_point(sensors, of_point_T1, point_E3, _STEP_NS * shifts_E5[:, 3:4]),
            *_of_track(sensors, of_track_T1, direction_E3, _STEP_NS * shifts_E5[:, 4:5]),
        ]
        sensors_TD = sensors_TD + self.sensor_input(bounded(features))
        return sensors_TD, event_ED + self.event_input(torch.cat([direction_E3, kappa_E1.log() / 3], 1))

    def _weights(self, sensors_TD: Tensor, sensors: SensorSet) -> tuple[Tensor, Tensor]:
        """Weights of the sensors, of sum 1 in each event, for the point and for the track. -> (T, 1), (T, 1)."""
        ln_T2 = self.weights(sensors_TD).float() - 4 * sensors.auxiliary_T1
        weight_T2 = ln_T2.clamp(-_LN_WEIGHT, _LN_WEIGHT).exp()
        sum_E2 = segment_sum(weight_T2, sensors.segments).clamp_min(1e-6)
        of_point_T1, of_track_T1 = (weight_T2 / spread(sum_E2, sensors.segments)).split(1, 1)
        return of_point_T1, of_track_T1


def _of_point(sensors: SensorSet, weight_T1: Tensor, shift_E3: Tensor, shift_ns_E1: Tensor) -> list[Tensor]:
    """Light and times as seen from a point: _NUM_OF_POINT columns, and waves."""
    segments = sensors.segments
    offset_T3 = sensors.position_T3 - spread(
        segment_sum(weight_T1 * sensors.position_T3, segments) + shift_E3, segments
    )
    distance_T1 = (offset_T3.square().sum(1, keepdim=True) + 1).sqrt()
    unit_T3, light_T1 = offset_T3 / distance_T1, ln_light(sensors.log10_charge_T1, distance_T1, sensors.medium)
    direct_ns_T1 = distance_T1 * sensors.medium.point_delay_ns_m
    delay_T1 = _centred(sensors.time_T1 - direct_ns_T1, weight_T1, shift_ns_E1, segments)
    return [
        *(distance_T1 / 200, unit_T3, light_T1, unit_T3 * light_T1, sensors.log10_charge_T1),
        *(delay_T1 / 500, (delay_T1 / 20).asinh() / 3, (delay_T1 / 5).asinh() / 3),
        waves(delay_T1, 40, 5000),
    ]


def _of_track(sensors: SensorSet, weight_T1: Tensor, direction_E3: Tensor, shift_ns_E1: Tensor) -> list[Tensor]:
    """Times as seen from a track that comes from ``direction``: _NUM_OF_TRACK columns, and waves."""
    segments = sensors.segments
    offset_T3 = sensors.position_T3 - spread(segment_sum(weight_T1 * sensors.position_T3, segments), segments)
    direction_T3 = spread(direction_E3, segments)
    along_T1 = -(offset_T3 * direction_T3).sum(1, keepdim=True)  # the particle travels away from the source
    aside_T3 = offset_T3 + along_T1 * direction_T3
    distance_T1 = (aside_T3.square().sum(1, keepdim=True) + 1).sqrt()
    direct_T1 = sensors.time_T1 - along_T1 / LIGHT_SPEED_M_NS - distance_T1 * sensors.medium.cone_delay_ns_m
    delay_T1 = _centred(direct_T1, weight_T1, shift_ns_E1, segments)
    side_T3, bent_T1 = aside_T3 / distance_T1, (delay_T1 / 20).asinh() / 3
    return [
        *(along_T1 / 300, distance_T1 / 100, side_T3, side_T3 * bent_T1),
        *(delay_T1 / 300, bent_T1, (delay_T1 / 5).asinh() / 3),
        waves(delay_T1, 40, 5000),
    ]


def _centred(time_T1: Tensor, weight_T1: Tensor, shift_E1: Tensor, segments: Segments) -> Tensor:
    """Times relative to their weighted mean over the event, and a shift. -> (T, 1)."""
    return time_T1 - spread(segment_sum(weight_T1 * time_T1, segments) + shift_E1, segments)
