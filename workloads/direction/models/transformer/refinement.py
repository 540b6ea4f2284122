"""Refinement: sensors as seen from a first prediction, for the layers behind it.

The network predicts two hypotheses about the source of the light: a point (cascade), and a track in the first predicted
direction. Differences of times and light from both enter the tokens. No classical fit: points and times come from
weights of the sensors, which are learned with everything else.

Shape suffixes: E events, T sensors, D width, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workloads.base.segments import Segments, segment_sum, spread
from workloads.direction.ice import CONE_DELAY_NS_M, LIGHT_SPEED_M_NS, POINT_DELAY_NS_M
from workloads.direction.models.sensors import SensorSet
from workloads.direction.models.transformer.features import ln_light, waves
from workloads.direction.models.transformer.layers import two_layers

_STEP_M = _STEP_NS = 100.0
"""Unit of the predicted shifts of points and times."""
_LN_WEIGHT = 10.0
"""Bound on the logarithm of a sensor's weight."""
_LIMIT = 30.0
_NUM_OF_POINT, _NUM_OF_TRACK = 12, 11
"""Features besides waves."""


class Refinement(nn.Module):
    """Update of sensors and event vectors by the differences from both hypotheses."""

    def __init__(self, width: int, frequencies: int) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.weights = nn.Linear(width, 2)
        self.shifts = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 5))
        self.sensor_input = two_layers(_NUM_OF_POINT + _NUM_OF_TRACK + 2 * 2 * frequencies, width)
        self.event_input = nn.Linear(4, width)
        last = self.shifts[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(
        self, sensors_TD: Tensor, event_ED: Tensor, sensors: SensorSet, direction_E3: Tensor, kappa_E1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Updated sensors and event vectors. ``direction``, ``kappa``: unit vectors and |p| of the first prediction."""
        of_point_T1, of_track_T1 = self._weights(sensors_TD, sensors)
        inputs_EF = torch.cat([event_ED, segment_sum(of_point_T1 * sensors_TD.float(), sensors.segments)], 1)
        shifts_E5 = self.shifts(inputs_EF).float()
        point_E3 = _STEP_M * shifts_E5[:, :3]
        features = [
            *_of_point(sensors, of_point_T1, point_E3, _STEP_NS * shifts_E5[:, 3:4], self.frequencies),
            *_of_track(sensors, of_track_T1, direction_E3, _STEP_NS * shifts_E5[:, 4:5], self.frequencies),
        ]
        sensors_TD = sensors_TD + self.sensor_input(torch.cat(features, 1).clamp(-_LIMIT, _LIMIT))
        return sensors_TD, event_ED + self.event_input(torch.cat([direction_E3, kappa_E1.log() / 3], 1))

    def _weights(self, sensors_TD: Tensor, sensors: SensorSet) -> tuple[Tensor, Tensor]:
        """Weights of the sensors, of sum 1 in each event, for the point and for the track. -> (T, 1), (T, 1)."""
        ln_T2 = self.weights(sensors_TD).float() - 4 * sensors.auxiliary_T1
        weight_T2 = ln_T2.clamp(-_LN_WEIGHT, _LN_WEIGHT).exp()
        sum_E2 = segment_sum(weight_T2, sensors.segments).clamp_min(1e-6)
        of_point_T1, of_track_T1 = (weight_T2 / spread(sum_E2, sensors.segments)).split(1, 1)
        return of_point_T1, of_track_T1


def _of_point(
    sensors: SensorSet, weight_T1: Tensor, shift_E3: Tensor, shift_ns_E1: Tensor, frequencies: int
) -> list[Tensor]:
    """Light and times as seen from a point: _NUM_OF_POINT columns, and waves."""
    segments = sensors.segments
    offset_T3 = sensors.position_T3 - spread(
        segment_sum(weight_T1 * sensors.position_T3, segments) + shift_E3, segments
    )
    distance_T1 = (offset_T3.square().sum(1, keepdim=True) + 1).sqrt()
    unit_T3, light_T1 = offset_T3 / distance_T1, ln_light(sensors.log10_charge_T1, distance_T1)
    delay_T1 = _centred(sensors.time_T1 - distance_T1 * POINT_DELAY_NS_M, weight_T1, shift_ns_E1, segments)
    return [
        *(distance_T1 / 200, unit_T3, light_T1, unit_T3 * light_T1, sensors.log10_charge_T1),
        *(delay_T1 / 500, (delay_T1 / 20).asinh() / 3, (delay_T1 / 5).asinh() / 3),
        waves(delay_T1, 40, 5000, frequencies),
    ]


def _of_track(
    sensors: SensorSet, weight_T1: Tensor, direction_E3: Tensor, shift_ns_E1: Tensor, frequencies: int
) -> list[Tensor]:
    """Times as seen from a track that comes from ``direction``: _NUM_OF_TRACK columns, and waves."""
    segments = sensors.segments
    offset_T3 = sensors.position_T3 - spread(segment_sum(weight_T1 * sensors.position_T3, segments), segments)
    direction_T3 = spread(direction_E3, segments)
    along_T1 = -(offset_T3 * direction_T3).sum(1, keepdim=True)  # the particle travels away from the source
    aside_T3 = offset_T3 + along_T1 * direction_T3
    distance_T1 = (aside_T3.square().sum(1, keepdim=True) + 1).sqrt()
    delay_T1 = _centred(
        sensors.time_T1 - along_T1 / LIGHT_SPEED_M_NS - distance_T1 * CONE_DELAY_NS_M, weight_T1, shift_ns_E1, segments
    )
    side_T3, bent_T1 = aside_T3 / distance_T1, (delay_T1 / 20).asinh() / 3
    return [
        *(along_T1 / 300, distance_T1 / 100, side_T3, side_T3 * bent_T1),
        *(delay_T1 / 300, bent_T1, (delay_T1 / 5).asinh() / 3),
        waves(delay_T1, 40, 5000, frequencies),
    ]


def _centred(time_T1: Tensor, weight_T1: Tensor, shift_E1: Tensor, segments: Segments) -> Tensor:
    """Times relative to their weighted mean over the event, and a shift. -> (T, 1)."""
    return time_T1 - spread(segment_sum(weight_T1 * time_T1, segments) + shift_E1, segments)
