"""Likelihood of a point source of light: the shower of a cascade, or the vertex of a track.

State, 4 numbers: position (m) and time (ns). A step, 4 numbers: the time (100 ns), three shifts (100 m).
Light reaches a sensor at the distance R after R GROUP_INDEX / c.

B events of a batch, L pulses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.direction.fits.pandel import ln_density
from workloads.direction.fits.pulses import PaddedPulses
from workloads.direction.fits.track import first_quartile
from workloads.direction.ice import POINT_DELAY_NS_M

_NEAREST_M = 1.0
_TIME_STEP_NS, _SHIFT_STEP_M = 100.0, 100.0


def vertex_state(pulses: PaddedPulses) -> Tensor:
    """Point sources in the middle of the light, at the time that puts a quarter of the clean pulses before it."""
    light_B1 = pulses.charge_BL.sum(1, keepdim=True)
    middle_B3 = (pulses.position_B3L * pulses.charge_BL.unsqueeze(1)).sum(2) / light_B1
    state_B4 = torch.cat([middle_B3, torch.zeros_like(light_B1)], 1)
    state_B4[:, 3] = first_quartile(_seen(state_B4, pulses)[0], pulses.charge_BL > 0)
    return state_B4


def vertex_scores(state_B4: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of point sources, and its derivatives by a step, a pulse each (B, 4, L)."""
    residual_BL, distance_BL, unit_B3L = _seen(state_B4, pulses)
    value_BL, by_ln_distance_BL, by_residual_BL = ln_density(table, distance_BL, residual_BL)
    slope_BL = by_residual_BL * pulses.present_BL
    by_distance_BL = by_ln_distance_BL * pulses.present_BL / distance_BL - slope_BL * POINT_DELAY_NS_M
    score_B3L = unit_B3L * (by_distance_BL * -_SHIFT_STEP_M).unsqueeze(1)
    return (value_BL * pulses.present_BL).sum(1), torch.cat([(slope_BL * -_TIME_STEP_NS).unsqueeze(1), score_B3L], 1)


def moved_vertex(state_B4: Tensor, step_B4: Tensor) -> Tensor:
    """Point sources after a step. (B, 4), (B, 4) -> (B, 4)."""
    position_B3 = state_B4[:, :3] + _SHIFT_STEP_M * step_B4[:, 1:]
    return torch.cat([position_B3, state_B4[:, 3:] + _TIME_STEP_NS * step_B4[:, :1]], 1)


def _seen(state_B4: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor]:
    """Time residual and distance (B, L), and the unit vector from the source (B, 3, L)."""
    from_B3L = pulses.position_B3L - state_B4[:, :3].unsqueeze(2)
    distance_BL = from_B3L.square().sum(1).clamp_min(_NEAREST_M**2).sqrt()
    residual_BL = pulses.time_BL - state_B4[:, 3:] - distance_BL * POINT_DELAY_NS_M
    return residual_BL, distance_BL, from_B3L / distance_BL.unsqueeze(1)
