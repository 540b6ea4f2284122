"""Likelihood of a track: a particle at the speed of light, whose Cherenkov light reaches the sensors.

State of a track, 7 numbers: unit vector of its travel, its point (m) at a time, that time (ns). A step, 5 numbers: the
time (100 ns), two tilts (rad), two shifts of the point across the track (100 m).

Light leaves at the Cherenkov angle θ, cos θ = 1 / PHASE_INDEX. A sensor at the distance ρ from the track, l along it
from the point, sees it l / c + ρ / c (GROUP_INDEX / sin θ - 1 / tan θ) after the particle is at the point; the light
travelled ρ / sin θ.

B events of a batch, L pulses.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.direction.fits.pandel import ln_density
from workloads.direction.fits.pulses import PaddedPulses
from workloads.direction.ice import CONE_DELAY_NS_M, LIGHT_SPEED_M_NS, SIN_CHERENKOV

_NEAREST_M = 1.0
_TIME_STEP_NS, _SHIFT_STEP_M = 100.0, 100.0


def track_state(travel_B3: Tensor, point_B3: Tensor, pulses: PaddedPulses) -> Tensor:
    """Tracks in a direction through a point, at the time that puts a quarter of the clean pulses before it. (B, 7)."""
    state_B7 = torch.cat([travel_B3, point_B3, torch.zeros_like(point_B3[:, :1])], 1)
    residual_BL = _seen(state_B7, pulses)[0]
    state_B7[:, 6] = first_quartile(residual_BL, pulses.charge_BL > 0)
    return state_B7


def first_quartile(values_BL: Tensor, used_BL: Tensor) -> Tensor:
    """Smallest used value of each row that a quarter of them is not above. At least one must be used. -> (B,)."""
    sorted_BL = values_BL.masked_fill(~used_BL, torch.inf).sort(1)[0]
    quarter_B1 = (used_BL.sum(1, keepdim=True) - 1).clamp_min(0) // 4
    return sorted_BL.gather(1, quarter_B1).squeeze(1)


def track_scores(state_B7: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of tracks, and its derivatives by a step, a pulse each (B, 5, L)."""
    residual_BL, rho_BL, along_BL, first_BL, second_BL = _seen(state_B7, pulses)
    value_BL, by_ln_distance_BL, by_residual_BL = ln_density(table, rho_BL / SIN_CHERENKOV, residual_BL)
    slope_BL = by_residual_BL * pulses.present_BL
    by_rho_BL = by_ln_distance_BL * pulses.present_BL / rho_BL - slope_BL * CONE_DELAY_NS_M
    # A tilt moves the sensor along the track and, by -l, across it.
    turn_BL = by_rho_BL * along_BL + slope_BL * rho_BL / LIGHT_SPEED_M_NS
    score_BL5 = [
        slope_BL * -_TIME_STEP_NS,
        -first_BL * turn_BL,
        -second_BL * turn_BL,
        first_BL * by_rho_BL * -_SHIFT_STEP_M,
        second_BL * by_rho_BL * -_SHIFT_STEP_M,
    ]
    return (value_BL * pulses.present_BL).sum(1), torch.stack(score_BL5, 1)


def moved_track(state_B7: Tensor, step_B5: Tensor) -> Tensor:
    """Tracks after a step. (B, 7), (B, 5) -> (B, 7)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    first_B3, second_B3 = across(travel_B3)
    tilted_B3 = travel_B3 + step_B5[:, 1:2] * first_B3 + step_B5[:, 2:3] * second_B3
    shifted_B3 = point_B3 + _SHIFT_STEP_M * (step_B5[:, 3:4] * first_B3 + step_B5[:, 4:5] * second_B3)
    return torch.cat([F.normalize(tilted_B3, dim=1), shifted_B3, time_B1 + _TIME_STEP_NS * step_B5[:, :1]], 1)


def across(travel_B3: Tensor) -> tuple[Tensor, Tensor]:
    """Two unit vectors at right angles to ``travel`` and to each other, smooth but for one direction. (B, 3) each.

    Duff et al., Building an orthonormal basis, revisited (JCGT 6, 2017).
    """
    x_B, y_B, z_B = travel_B3.unbind(1)
    sign_B = torch.where(z_B < 0, -1.0, 1.0)
    a_B = -1 / (sign_B + z_B)
    b_B = x_B * y_B * a_B
    first_B3 = torch.stack([1 + sign_B * x_B * x_B * a_B, sign_B * b_B, -sign_B * x_B], 1)
    return first_B3, torch.stack([b_B, sign_B + y_B * y_B * a_B, -y_B], 1)


def _seen(state_B7: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Time residual, distance to the track, length along it, and the two parts of the unit vector across. (B, L)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    x_BL, y_BL, z_BL = (pulses.position_B3L - point_B3.unsqueeze(2)).unbind(1)
    along_BL, first_BL, second_BL = (
        (axis_B3[:, 0:1] * x_BL).addcmul_(axis_B3[:, 1:2], y_BL).addcmul_(axis_B3[:, 2:3], z_BL)
        for axis_B3 in (travel_B3, *across(travel_B3))
    )
    rho_BL = (first_BL.square() + second_BL.square()).clamp_min(_NEAREST_M**2).sqrt()
    residual_BL = pulses.time_BL - time_B1 - along_BL / LIGHT_SPEED_M_NS - rho_BL * CONE_DELAY_NS_M
    return residual_BL, rho_BL, along_BL, first_BL / rho_BL, second_BL / rho_BL
