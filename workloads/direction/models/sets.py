"""Network of sets: two branches over the sensors of an event, and the product of three experts' distributions.

The product of von Mises-Fisher distributions is one, and its p is the sum of theirs. The track fit and the posterior of
a cascade are experts, with a trust that branch B predicts; branch A is the third. Branch A learns from its own loss
alone: a gradient through the product would teach it nothing where a fit is good already.

Branch A sees the light around the fitted vertex, and neither the track fit, with which it would learn no cascades, nor
the cascade, with which tracks become worse. Branch B sees residuals of the track fit, and what the cascade's tells.

Shape suffixes: E events, T sensors, D width, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.base.segments import Segments, segment_mean, spread
from workloads.direction.columns import CLASSICAL_FITS
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
    sensor_set,
    two_layers,
    waves,
)

MAX_SENSORS = 96
"""Most sensors of an event that the branches see: those with clean pulses first, by charge, then those nearest to
them."""
HIDDEN, LAYERS = 64, 5
"""Width of the branch that doesn't know the track fit, and number of its exchanges: the sensors of an event are pooled,
and the result enters each of them. The figures of docs/explanation/direction.md were measured with these sizes."""
_TRUST_HIDDEN, _TRUST_LAYERS = 32, 2
"""Width and exchanges of the branch that weighs and corrects the track fit: it has less to learn than the other."""
_NUM_FOUND = 6
"""Features of branch B from the prediction of branch A."""
_LONGEST_MEAN = 0.99
"""Largest length of a mean direction, so that its concentration is finite."""
NUM_SENSOR_A, NUM_EVENT_A = 23 + 4 * NUM_OF_WAVES, 16
NUM_SENSOR_B, NUM_EVENT_B = 17 + NUM_OF_WAVES, 29


class SetsNetwork(DirectionNetwork):
    """Branches A (light) and B (trust in the fits)."""

    needs_fits = True

    def __init__(self, hidden: int = HIDDEN, layers: int = LAYERS) -> None:
        """``hidden``, ``layers``: of the branch that doesn't know the track fit; others for tests alone."""
        super().__init__()
        self.light = _Branch(NUM_SENSOR_A, NUM_EVENT_A, hidden, layers, 4)
        self.trust = _Branch(NUM_SENSOR_B, NUM_EVENT_B + _NUM_FOUND, _TRUST_HIDDEN, _TRUST_LAYERS, 6)
        self.num_summary = 2 * (hidden + _TRUST_HIDDEN)

    def forward(self, events: EventInput) -> Prediction:
        """Product of all experts; auxiliary: branch A alone."""
        inputs = branch_inputs(events)
        light_E4, light_EF = self.light(inputs.sensors_a_TF, inputs.events_a_EF, inputs.segments)
        light_E3 = light_E4[:, :3] * (3 * light_E4[:, 3:]).clamp(*LN_KAPPA).exp()
        known_E3, track_E3 = light_E3.detach(), inputs.track_E3
        events_b_EF = torch.cat([inputs.events_b_EF, _found(known_E3, track_E3)], 1)
        trust_E6, trust_EF = self.trust(inputs.sensors_b_TF, events_b_EF, inputs.segments)
        kappa_E1 = (3 * trust_E6[:, :1] + 3).clamp(*LN_KAPPA).exp()
        # The fit is corrected in units of its own error.
        fit_E3 = kappa_E1 * track_E3 + kappa_E1.sqrt() * trust_E6[:, 3:]
        cascade_E3 = inputs.cascade_E3 * (3 * trust_E6[:, 2:3] - 2).clamp(-8, 2).exp()
        p_E3 = known_E3 * (2 * trust_E6[:, 1:2]).clamp(-6, 3).exp() + fit_E3 + cascade_E3
        return Prediction(p_E3, (light_E3,), self.energy_of(torch.cat([light_EF, trust_EF], 1)))


def _found(p_E3: Tensor, track_E3: Tensor) -> Tensor:
    """Prediction of branch A, beside the track fit. -> (E, 6)."""
    kappa_E1 = torch.linalg.vector_norm(p_E3, dim=1, keepdim=True).clamp_min(1e-3)
    unit_E3 = p_E3 / kappa_E1
    cosine_E1 = (unit_E3 * track_E3).sum(1, keepdim=True)
    apart_E1 = torch.linalg.vector_norm(unit_E3 - track_E3, dim=1, keepdim=True)
    return torch.cat([unit_E3, kappa_E1.log() / 3, cosine_E1, apart_E1], 1)


class _Branch(nn.Module):
    """EPiC network: exchange layers, then the outputs of the event."""

    def __init__(self, num_sensor: int, num_event: int, width: int, layers: int, num_outputs: int) -> None:
        super().__init__()
        self.sensor_input = two_layers(num_sensor, width)
        self.event_input = two_layers(num_event, width)
        self.layers = nn.ModuleList(Exchange(width) for _ in range(layers))
        self.head = head(2 * width, width, num_outputs)

    def forward(self, sensors_TF: Tensor, events_EF: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Outputs of each event, float32, and its vector before them. (T, F), (E, F) -> (E, outputs), (E, 2 D)."""
        sensors_TD, event_ED = self.sensor_input(sensors_TF), self.event_input(events_EF)
        for layer in self.layers:
            sensors_TD, event_ED = layer(sensors_TD, event_ED, segments)
        summary_EF = torch.cat([event_ED, segment_mean(sensors_TD, segments)], 1)
        return self.head(summary_EF).float(), summary_EF


@dataclass(frozen=True)
class BranchInputs:
    """Input of both branches."""

    segments: Segments
    """Assignment of the chosen sensors to the events."""
    sensors_a_TF: Tensor
    events_a_EF: Tensor
    sensors_b_TF: Tensor
    events_b_EF: Tensor
    track_E3: Tensor
    """Direction of the track fit, a unit vector (0 without one)."""
    cascade_E3: Tensor
    """Direction of a cascade, as long as the concentration of its posterior."""


@dataclass(frozen=True)
class _Around:
    """Sensors as seen from the fitted vertex."""

    offset_T3: Tensor
    distance_T1: Tensor
    delay_T1: Tensor
    """Time after direct light of the vertex, ns."""
    light_T1: Tensor
    """Logarithm of the light that the vertex has sent, from charge and distance."""


@torch.no_grad()
def branch_inputs(events: EventInput) -> BranchInputs:
    """Features of events with classical fits, float32, at most MAX_SENSORS sensors of each event."""
    sensors = sensor_set(events, MAX_SENSORS)
    fits_E = dict(zip(CLASSICAL_FITS, events.fits_EF.split(1, 1), strict=True))
    track_E3, line_E3 = _vector(fits_E, "track"), _vector(fits_E, "line")
    vertex_E3 = _vector(fits_E, "vertex", "_m")
    around = _around(sensors, vertex_E3, fits_E["vertex_ns"])
    mean_E3 = _vector(fits_E, "cascade")
    length_E1 = torch.linalg.vector_norm(mean_E3, dim=1, keepdim=True).clamp_max(_LONGEST_MEAN)
    spread_E1 = 1 - length_E1**2
    told_E3 = torch.cat([(spread_E1.log() + 2) / 2, fits_E["cascade_ln_pe"] / 3 - 1, fits_E["cascade_ln_l"] / 5 + 1], 1)
    line_at_E3 = _vector(fits_E, "line_at", "_m")
    event_E12 = torch.cat(
        [
            sensors.summary_E8,
            3 * fits_E["line_speed_m_ns"],
            (fits_E["line_residual_m"].abs() + 1).log() - 3,
            line_at_E3[:, 2:] / 500,
            torch.linalg.vector_norm(line_at_E3[:, :2], dim=1, keepdim=True) / 500,
        ],
        1,
    )
    track_ln_l_E1, vertex_ln_l_E1 = fits_E["track_ln_l"], fits_E["vertex_ln_l"]
    agreements = [(track_E3 * other_E3).sum(1, keepdim=True) for other_E3 in (line_E3, mean_E3)]
    events_b = [event_E12, told_E3, vertex_ln_l_E1, track_ln_l_E1, vertex_ln_l_E1 - track_ln_l_E1]
    return BranchInputs(
        segments=sensors.segments,
        sensors_a_TF=bounded([*_of_light(sensors, around)]),
        events_a_EF=bounded([event_E12, vertex_ln_l_E1, vertex_E3 / 500]),
        sensors_b_TF=bounded([*_of_residuals(sensors, around, fits_E, track_E3)]),
        events_b_EF=bounded([*events_b, track_E3, line_E3, mean_E3, *agreements]),
        track_E3=track_E3,
        # The concentration of the vMF distribution with a mean of this length (Banerjee et al., JMLR 6, 1345, 2005).
        cascade_E3=mean_E3 * (2 + spread_E1) / spread_E1,
    )


def _around(sensors: SensorSet, vertex_E3: Tensor, vertex_ns_E1: Tensor) -> _Around:
    vertex_T3, vertex_ns_T1 = spread(torch.cat([vertex_E3, vertex_ns_E1], 1), sensors.segments).split([3, 1], 1)
    offset_T3 = sensors.position_T3 - vertex_T3
    distance_T1 = torch.linalg.vector_norm(offset_T3, dim=1, keepdim=True)
    return _Around(
        offset_T3=offset_T3,
        distance_T1=distance_T1,
        delay_T1=sensors.time_T1 - vertex_ns_T1 - distance_T1 * sensors.medium.point_delay_ns_m,
        light_T1=ln_light(sensors.log10_charge_T1, distance_T1, sensors.medium),
    )


def _of_light(sensors: SensorSet, around: _Around) -> list[Tensor]:
    """Features of branch A: NUM_SENSOR_A columns."""
    unit_T3 = around.offset_T3 / around.distance_T1.clamp_min(1)
    return [
        *(unit_T3, around.light_T1, around.light_T1 * unit_T3),
        *(sensors.position_T3 / 500, around.offset_T3 / 200, around.distance_T1 / 200),
        *(sensors.time_T1 / 1000, sensors.log10_charge_T1, sensors.auxiliary_T1 - 0.5),
        *(sensors.median_T1 / 300, sensors.last_T1 / 1000, sensors.ln_pulses_T1 / 2, sensors.mean_T1 / 300),
        *(around.delay_T1 / 500, (around.delay_T1 / 20).asinh() / 3),
        *(waves(sensors.position_T3, 20, 1500), waves(sensors.time_T1, 40, 5000)),
    ]


def _of_residuals(sensors: SensorSet, around: _Around, fits_E: dict[str, Tensor], track_E3: Tensor) -> list[Tensor]:
    """Features of branch B: NUM_SENSOR_B columns."""
    fit_E7 = torch.cat([_vector(fits_E, "track_at", "_m"), track_E3, fits_E["track_ns"]], 1)
    at_T3, track_T3, track_ns_T1 = spread(fit_E7, sensors.segments).split([3, 3, 1], 1)
    offset_T3 = sensors.position_T3 - at_T3
    along_T1 = -(offset_T3 * track_T3).sum(1, keepdim=True)  # the particle travels away from the source
    aside_T3 = offset_T3 + along_T1 * track_T3
    distance_T1 = torch.linalg.vector_norm(aside_T3, dim=1, keepdim=True)
    cone_ns_T1 = distance_T1 * sensors.medium.cone_delay_ns_m
    residual_T1 = sensors.time_T1 - track_ns_T1 - along_T1 / LIGHT_SPEED_M_NS - cone_ns_T1
    side_T3, bent_T1 = aside_T3 / distance_T1.clamp_min(1), (residual_T1 / 20).asinh() / 3
    return [
        *(along_T1 / 300, distance_T1 / 100, residual_T1 / 300, bent_T1, (residual_T1 / 5).asinh() / 3),
        *(side_T3, side_T3 * bent_T1, sensors.log10_charge_T1, sensors.auxiliary_T1 - 0.5),
        *(around.delay_T1 / 500, around.distance_T1 / 200, around.light_T1, sensors.ln_pulses_T1 / 2),
        waves(residual_T1, 40, 5000),
    ]


def _vector(fits_E: dict[str, Tensor], fit: str, unit: str = "") -> Tensor:
    return torch.cat([fits_E[f"{fit}_{axis}{unit}"] for axis in "xyz"], 1)
