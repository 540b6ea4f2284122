"""Features of sensors and events for the two branches.

Branch A sees the light around the fitted vertex and no track fit: with one it would learn no cascades. Branch B sees
residuals of the track fit. Shape suffixes: E events, T sensors, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.segments import Segments, spread
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.ice import ABSORPTION_M, CONE_DELAY_NS_M, LIGHT_SPEED_M_NS, POINT_DELAY_NS_M
from workloads.direction.models.events import EventInput
from workloads.direction.models.sensors import SensorSet, sensor_set

_LIMIT = 30.0
"""Bound on a feature, which is about 1: a fit far off must not blow up a batch."""
_WAVES = 8
"""Wavelengths of a Fourier feature."""


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


@dataclass(frozen=True)
class _Around:
    """Sensors as seen from the fitted vertex."""

    offset_T3: Tensor
    distance_T1: Tensor
    delay_T1: Tensor
    """Time after direct light of the vertex, ns."""
    light_T1: Tensor
    """Logarithm of the light that the vertex has sent, from charge and distance."""


NUM_SENSOR_A, NUM_EVENT_A = 23 + 4 * 2 * _WAVES, 16
NUM_SENSOR_B, NUM_EVENT_B = 17 + 2 * _WAVES, 22


@torch.no_grad()
def branch_inputs(events: EventInput, max_sensors: int) -> BranchInputs:
    """Features of events with classical fits, float32, at most ``max_sensors`` sensors of each event."""
    sensors = sensor_set(events, max_sensors)
    fits_E = dict(zip(CLASSICAL_FITS, events.fits_EF.split(1, 1), strict=True))
    track_E3, line_E3 = _vector(fits_E, "track"), _vector(fits_E, "line")
    vertex_E3 = torch.cat([fits_E[f"vertex_{axis}_m"] for axis in "xyz"], 1)
    around = _around(sensors, vertex_E3, fits_E["vertex_ns"])
    line_at_E3 = torch.cat([fits_E[f"line_at_{axis}_m"] for axis in "xyz"], 1)
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
    agreement_E1 = (track_E3 * line_E3).sum(1, keepdim=True)
    events_b = [event_E12, vertex_ln_l_E1, track_ln_l_E1, vertex_ln_l_E1 - track_ln_l_E1]
    return BranchInputs(
        segments=sensors.segments,
        sensors_a_TF=_bounded([*_of_light(sensors, around)]),
        events_a_EF=_bounded([event_E12, vertex_ln_l_E1, vertex_E3 / 500]),
        sensors_b_TF=_bounded([*_of_residuals(sensors, around, fits_E, track_E3)]),
        events_b_EF=_bounded([*events_b, track_E3, line_E3, agreement_E1]),
        track_E3=track_E3,
    )


def _around(sensors: SensorSet, vertex_E3: Tensor, vertex_ns_E1: Tensor) -> _Around:
    vertex_T3, vertex_ns_T1 = spread(torch.cat([vertex_E3, vertex_ns_E1], 1), sensors.segments).split([3, 1], 1)
    offset_T3 = sensors.position_T3 - vertex_T3
    distance_T1 = torch.linalg.vector_norm(offset_T3, dim=1, keepdim=True)
    ln_light_T1 = sensors.log10_charge_T1 * math.log(10) + distance_T1 / ABSORPTION_M + 1.5 * (distance_T1 / 3).log1p()
    return _Around(
        offset_T3=offset_T3,
        distance_T1=distance_T1,
        delay_T1=sensors.time_T1 - vertex_ns_T1 - distance_T1 * POINT_DELAY_NS_M,
        light_T1=(ln_light_T1 - 8) / 3,
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
        *(_waves(sensors.position_T3, 20, 1500), _waves(sensors.time_T1, 40, 5000)),
    ]


def _of_residuals(sensors: SensorSet, around: _Around, fits_E: dict[str, Tensor], track_E3: Tensor) -> list[Tensor]:
    """Features of branch B: NUM_SENSOR_B columns."""
    at_E3 = torch.cat([fits_E[f"track_at_{axis}_m"] for axis in "xyz"], 1)
    fit_E7 = torch.cat([at_E3, track_E3, fits_E["track_ns"]], 1)
    at_T3, track_T3, track_ns_T1 = spread(fit_E7, sensors.segments).split([3, 3, 1], 1)
    offset_T3 = sensors.position_T3 - at_T3
    along_T1 = -(offset_T3 * track_T3).sum(1, keepdim=True)  # the particle travels away from the source
    aside_T3 = offset_T3 + along_T1 * track_T3
    distance_T1 = torch.linalg.vector_norm(aside_T3, dim=1, keepdim=True)
    residual_T1 = sensors.time_T1 - track_ns_T1 - along_T1 / LIGHT_SPEED_M_NS - distance_T1 * CONE_DELAY_NS_M
    side_T3, bent_T1 = aside_T3 / distance_T1.clamp_min(1), (residual_T1 / 20).asinh() / 3
    return [
        *(along_T1 / 300, distance_T1 / 100, residual_T1 / 300, bent_T1, (residual_T1 / 5).asinh() / 3),
        *(side_T3, side_T3 * bent_T1, sensors.log10_charge_T1, sensors.auxiliary_T1 - 0.5),
        *(around.delay_T1 / 500, around.distance_T1 / 200, around.light_T1, sensors.ln_pulses_T1 / 2),
        _waves(residual_T1, 40, 5000),
    ]


def _vector(fits_E: dict[str, Tensor], fit: str) -> Tensor:
    return torch.cat([fits_E[f"{fit}_{axis}"] for axis in "xyz"], 1)


def _waves(values_TD: Tensor, shortest: float, longest: float) -> Tensor:
    """Sines and cosines at wavelengths from ``shortest`` to ``longest``, in the unit of the values. -> (T, 16 D)."""
    steps_K = torch.linspace(math.log(shortest), math.log(longest), _WAVES, device=values_TD.device)
    phase_TDK = values_TD.unsqueeze(2) * (2 * math.pi * (-steps_K).exp())
    return torch.cat([phase_TDK.sin(), phase_TDK.cos()], 2).flatten(1)


def _bounded(columns: list[Tensor]) -> Tensor:
    return torch.cat(columns, 1).clamp(-_LIMIT, _LIMIT)
