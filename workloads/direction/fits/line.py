"""Line fits: the plane of light that best explains positions and times, plain and with robust weights.

The plain fit is IceCube's LineFit (AMANDA, astro-ph/0407044, 3.1.1): least squares of r = r0 + v t. The robust one
repeats it with the weights of Huber's loss (Aartsen et al., arXiv:1308.5501), so that scattered light and noise far
from the line pull as much as light at 60 m, no more.

E events, P pulses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_sum, spread
from workloads.direction.reference_time import segment_medians

REWEIGHTINGS = 2
"""Repetitions with new weights; more of them change the direction by less than a tenth of its error."""

FULL_WEIGHT_M = 60.0
"""Residual up to which a pulse counts in full."""

_LEAST_VARIANCE_NS2 = 1e-6
_LEAST_SPEED_M_NS = 1e-9
_STRAIGHT_UP = (0.0, 0.0, -1.0)
"""Direction of travel of an event that has none: down, as from the source straight above."""


class Lines(NamedTuple):
    """Lines r(t) = point + speed × travel × (t - time) of events."""

    travel_E3: Tensor
    """Unit vector of the motion, away from the source; straight down if the speed is 0."""
    point_E3: Tensor
    """Weighted mean of the pulses' positions, m."""
    time_E: Tensor
    """Weighted mean of their times, ns."""
    speed_E: Tensor
    """m/ns."""
    residual_E: Tensor
    """Median distance between a pulse and the line at its time, m."""


def line_fits(position_P3: Tensor, time_P: Tensor, segments: Segments, reweightings: int = REWEIGHTINGS) -> Lines:
    """Lines through each event's pulses; ``reweightings`` = 0 is the plain LineFit.

    ``position_P3`` m and ``time_P`` ns, relative to something near the event; all pulses count, so that the caller
    passes the clean ones. An event without pulses: zeros and straight down.
    """
    residual_P1 = torch.zeros_like(time_P).unsqueeze(1)
    for _ in range(reweightings + 1):
        weight_P1 = FULL_WEIGHT_M / residual_P1.clamp_min(FULL_WEIGHT_M)
        velocity_E3, mean_E4 = _least_squares(position_P3, time_P, weight_P1, segments)
        centred_P4 = torch.cat([position_P3, time_P.unsqueeze(1)], 1) - spread(mean_E4, segments)
        along_P3 = spread(velocity_E3, segments) * centred_P4[:, 3:]
        residual_P1 = (centred_P4[:, :3] - along_P3).norm(dim=1, keepdim=True)
    residual_P = residual_P1.squeeze(1)
    speed_E = velocity_E3.norm(dim=1)
    moves_E1 = (speed_E > _LEAST_SPEED_M_NS).unsqueeze(1)
    travel_E3 = torch.where(
        moves_E1, velocity_E3 / speed_E.clamp_min(_LEAST_SPEED_M_NS).unsqueeze(1), velocity_E3.new_tensor(_STRAIGHT_UP)
    )
    residual_E = segment_medians(residual_P, torch.ones_like(residual_P, dtype=torch.bool), segments)
    return Lines(travel_E3, mean_E4[:, :3], mean_E4[:, 3], speed_E, residual_E)


def _least_squares(position_P3: Tensor, time_P: Tensor, weight_P1: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Velocity (E, 3), and mean of position and time (E, 4), of the weighted least squares of r = r0 + v t."""
    values_P4 = torch.cat([position_P3, time_P.unsqueeze(1)], 1)
    sums_E5 = segment_sum(torch.cat([weight_P1 * values_P4, weight_P1], 1), segments)
    mean_E4 = sums_E5[:, :4] / sums_E5[:, 4:].clamp_min(torch.finfo(sums_E5.dtype).tiny)
    centred_P4 = values_P4 - spread(mean_E4, segments)
    moments_E4 = segment_sum(weight_P1 * centred_P4 * centred_P4[:, 3:], segments)
    return moments_E4[:, :3] / moments_E4[:, 3:].clamp_min(_LEAST_VARIANCE_NS2), mean_E4
