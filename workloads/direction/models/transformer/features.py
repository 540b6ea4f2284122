"""Features of pulses, sensors and events for the first layers: nothing but what was measured.

Shape suffixes: E events, T chosen sensors, P their pulses, F features, K wavelengths, D columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_sum, spread
from workloads.direction.ice import ABSORPTION_M
from workloads.direction.models.events import EventInput
from workloads.direction.models.sensors import SensorSet

_LIMIT = 30.0
"""Bound on a feature, which is about 1: one extreme pulse must not blow up a batch."""


@dataclass(frozen=True)
class TokenInputs:
    """Input of the networks that make the tokens."""

    pulses: Segments
    """Assignment of the pulses to the chosen sensors."""
    pulses_PF: Tensor
    sensors_TF: Tensor
    events_EF: Tensor


def num_pulse_features(frequencies: int) -> int:
    """Columns of `TokenInputs.pulses_PF`."""
    return 4 + 2 * frequencies


def num_sensor_features(frequencies: int) -> int:
    """Columns of `TokenInputs.sensors_TF`."""
    return 22 + 4 * 2 * frequencies


NUM_EVENT_FEATURES = 17


@torch.no_grad()
def token_inputs(events: EventInput, sensors: SensorSet, frequencies: int) -> TokenInputs:
    """Features of the chosen sensors and their pulses, float32."""
    clean_T1 = 1 - sensors.auxiliary_T1
    charge_T1 = torch.pow(10, sensors.log10_charge_T1)
    # The charge of sensors without clean pulses counts next to nothing, unless there is no other.
    centre_E4 = _weighted_mean(
        torch.cat([sensors.position_T3, sensors.time_T1], 1), charge_T1 * (clean_T1 + 1e-3), sensors.segments
    )
    pulses, pulses_PF = _of_pulses(events, sensors, frequencies)
    return TokenInputs(
        pulses=pulses,
        pulses_PF=pulses_PF,
        sensors_TF=_of_sensors(sensors, centre_E4, frequencies),
        events_EF=_bounded([sensors.summary_E8, centre_E4[:, :3] / 500, _shape(sensors, clean_T1)]),
    )


def ln_light(log10_charge_T1: Tensor, distance_T1: Tensor) -> Tensor:
    """Logarithm of the light that a source at these distances has sent, scaled to about 1. (T, 1), (T, 1) -> (T, 1)."""
    absorbed_T1 = distance_T1 / ABSORPTION_M + 1.5 * (distance_T1 / 3).log1p()
    return (log10_charge_T1 * math.log(10) + absorbed_T1 - 8) / 3


def waves(values_PD: Tensor, shortest: float, longest: float, frequencies: int) -> Tensor:
    """Sines and cosines at wavelengths from ``shortest`` to ``longest``, in the unit of the values. -> (P, 2 K D)."""
    ln_K = torch.linspace(math.log(shortest), math.log(longest), frequencies, device=values_PD.device)
    phase_PDK = values_PD.unsqueeze(2) * (2 * math.pi * (-ln_K).exp())
    return torch.cat([phase_PDK.sin(), phase_PDK.cos()], 2).flatten(1)


def _of_pulses(events: EventInput, sensors: SensorSet, frequencies: int) -> tuple[Segments, Tensor]:
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
        waves(time_P1, 40, 5000, frequencies),
    ]
    return pulses, _bounded(columns)


def _of_sensors(sensors: SensorSet, centre_E4: Tensor, frequencies: int) -> Tensor:
    """Sensors as seen from the centre of the light. -> (T, num_sensor_features)."""
    centre_T3, centre_ns_T1 = spread(centre_E4, sensors.segments).split([3, 1], 1)
    offset_T3 = sensors.position_T3 - centre_T3
    distance_T1 = torch.linalg.vector_norm(offset_T3, dim=1, keepdim=True)
    unit_T3, light_T1 = offset_T3 / distance_T1.clamp_min(1), ln_light(sensors.log10_charge_T1, distance_T1)
    columns = [
        *(unit_T3, light_T1, light_T1 * unit_T3),
        *(sensors.position_T3 / 500, offset_T3 / 200, distance_T1 / 200),
        *(sensors.time_T1 / 1000, (sensors.time_T1 - centre_ns_T1) / 1000),
        *(sensors.log10_charge_T1, sensors.auxiliary_T1 - 0.5, sensors.ln_pulses_T1 / 2),
        *(sensors.median_T1 / 300, sensors.mean_T1 / 300, sensors.last_T1 / 1000),
        *(waves(sensors.position_T3, 20, 1500, frequencies), waves(sensors.time_T1, 40, 5000, frequencies)),
    ]
    return _bounded(columns)


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


def _bounded(columns: list[Tensor]) -> Tensor:
    return torch.cat(columns, 1).clamp(-_LIMIT, _LIMIT)
