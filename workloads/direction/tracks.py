"""Tracks: the likelihood of an event's pulses, from their times alone, and from all light.

A track is a particle at the speed of light, whose Cherenkov light reaches the sensors. Its state, 7 numbers: unit
vector of its travel, its point (m) at a time, that time (ns). A step, 5 numbers: the time (100 ns), two tilts (rad),
two shifts of the point across the track (100 m). Light leaves at the Cherenkov angle θ, cos θ = 1 / phase index. A
sensor at the distance ρ from the track, l along it from the point, sees it l / c + ρ / c (group index / sin θ -
1 / tan θ) after the particle is at the point; the light travelled ρ / sin θ.

By its times alone a track is found, but light that is missing tells as much: sensors beside the track that saw nothing;
and the simulator's tracks have a shower in their middle, whose light spreads from a point. So the state of a lit track
has two more numbers: the place of the shower along the track from its point (m), and the decimal logarithm of the
energy (GeV), which sets both lights and the length of the track. Pulses are a Poisson process: the rate in a sensor is
that of noise, and the light expected there times the density of its times. A step has two more numbers, too: the place
of the shower (200 m) and the logarithm.

K sensors, N = L + K places; the others as in fits.py.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.direction import light
from workloads.direction.geometry import LIGHT_SPEED_M_NS, Medium
from workloads.direction.light import PaddedPulses

# ---- Times alone.


def track_state(travel_B3: Tensor, point_B3: Tensor, pulses: PaddedPulses) -> Tensor:
    """Tracks in a direction through a point, at the time that puts a quarter of the clean pulses before it. (B, 7)."""
    state_B7 = torch.cat([travel_B3, point_B3, torch.zeros_like(point_B3[:, :1])], 1)
    late_BL = _late(pulses.time_BL, *_seen(state_B7, pulses.position_B3L)[:2], pulses.medium)
    state_B7[:, 6] = light.first_quartile(late_BL, pulses.charge_BL > 0)
    return state_B7


def track_scores(state_B7: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of tracks, and its derivatives by a step, a pulse each (B, 5, L)."""
    seen, medium = _seen(state_B7, pulses.position_B3L), pulses.medium
    along_BL, rho_BL, *_ = seen
    late_BL = _late(pulses.time_BL - state_B7[:, 6:7], along_BL, rho_BL, medium)
    path_BL = rho_BL / medium.sin_cherenkov
    value_BL, by_ln_distance_BL, by_residual_BL = light.ln_density(table, path_BL, late_BL, medium)
    slope_BL = by_residual_BL * pulses.present_BL
    by_rho_BL = by_ln_distance_BL * pulses.present_BL / rho_BL - slope_BL * medium.cone_delay_ns_m
    score_BL5 = _by_step(-slope_BL, slope_BL / -LIGHT_SPEED_M_NS, by_rho_BL, seen)
    return (value_BL * pulses.present_BL).sum(1), torch.stack(score_BL5, 1)


def moved_track(state_B7: Tensor, step_B5: Tensor) -> Tensor:
    """Tracks after a step. (B, 7), (B, 5) -> (B, 7)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    first_B3, second_B3 = across(travel_B3)
    tilted_B3 = travel_B3 + step_B5[:, 1:2] * first_B3 + step_B5[:, 2:3] * second_B3
    shifted_B3 = point_B3 + light.SHIFT_STEP_M * (step_B5[:, 3:4] * first_B3 + step_B5[:, 4:5] * second_B3)
    return torch.cat([F.normalize(tilted_B3, dim=1), shifted_B3, time_B1 + light.TIME_STEP_NS * step_B5[:, :1]], 1)


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


def _seen(state_B7: Tensor, position_B3L: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Length along the track, distance from it, and the two parts of the unit vector across. (B, L) each."""
    travel_B3, point_B3 = state_B7[:, :3], state_B7[:, 3:6]
    x_BL, y_BL, z_BL = (position_B3L - point_B3.unsqueeze(2)).unbind(1)
    along_BL, first_BL, second_BL = (
        (axis_B3[:, 0:1] * x_BL).addcmul_(axis_B3[:, 1:2], y_BL).addcmul_(axis_B3[:, 2:3], z_BL)
        for axis_B3 in (travel_B3, *across(travel_B3))
    )
    rho_BL = (first_BL.square() + second_BL.square()).clamp_min(light.NEAREST_M**2).sqrt()
    return along_BL, rho_BL, first_BL / rho_BL, second_BL / rho_BL


def _late(since_BL: Tensor, along_BL: Tensor, rho_BL: Tensor, medium: Medium) -> Tensor:
    """Time residual of light from tracks; ``since``: time after the particle was at its point, ns. (B, L)."""
    return since_BL - along_BL / LIGHT_SPEED_M_NS - rho_BL * medium.cone_delay_ns_m


def _by_step(
    by_time_BL: Tensor, by_along_BL: Tensor, by_rho_BL: Tensor, seen: tuple[Tensor, Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """Derivatives by the five parts of a step, from those by the track's time and by the places that _seen() tells."""
    along_BL, rho_BL, first_BL, second_BL = seen
    # A tilt moves the sensor along the track and, by -l, across it.
    turn_BL, shift_BL = by_along_BL * rho_BL - by_rho_BL * along_BL, by_rho_BL * -light.SHIFT_STEP_M
    by_tilts = (first_BL * turn_BL, second_BL * turn_BL)
    return [by_time_BL * light.TIME_STEP_NS, *by_tilts, first_BL * shift_BL, second_BL * shift_BL]


# ---- All light.

_FIRST_LG_ENERGY, _LG_ENERGIES = 3.3, (0.0, 9.0)
_PLACE_STEP_M = 200.0
_SOFT_END_M = 10.0
"""Length over which the light of a track fades at its ends: the likelihood has no edges."""
_STRATA = ((64, 1), (48, 4), (48, 16))
_ALONG_M = 600.0
"""Sensors within this of the shower, along the track, are ordered by their distance to the track alone."""
_ROWS = 256
"""Tracks whose distances to all sensors are computed at a time: bounds the memory."""


def lit_track(state_B7: Tensor, pulses: PaddedPulses) -> Tensor:
    """Return tracks with their shower in the middle of the pulses, clean ones first. (B, 7) -> (B, 9)."""
    weight_BL = (pulses.charge_BL > 0) + 1e-3 * pulses.present_BL  # thinning may have left no clean pulse
    along_BL = _seen(state_B7, pulses.position_B3L)[0]
    middle_B1 = (along_BL * weight_BL).sum(1, keepdim=True) / weight_BL.sum(1, keepdim=True)
    return torch.cat([state_B7, middle_B1, torch.full_like(middle_B1, _FIRST_LG_ENERGY)], 1)


def moved_lit_track(state_B9: Tensor, step_B7: Tensor) -> Tensor:
    """Return lit tracks after a step. (B, 9), (B, 7) -> (B, 9)."""
    place_B1 = state_B9[:, 7:8] + _PLACE_STEP_M * step_B7[:, 5:6]
    lg_energy_B1 = (state_B9[:, 8:] + step_B7[:, 6:]).clamp(*_LG_ENERGIES)
    return torch.cat([moved_track(state_B9[:, :7], step_B7[:, :5]), place_B1, lg_energy_B1], 1)


def sensors_beside(state_B9: Tensor, position_S3: Tensor) -> tuple[Tensor, Tensor]:
    """Return places of sensors that the light is summed over, (B, 3, K), and the number each stands for, (K,)."""
    (rank_K, weight_K), nearest = light.strata(_STRATA, len(position_S3)), []
    for state_R9 in state_B9.split(_ROWS):
        offset_R3S = position_S3.T - state_R9[:, 3:6, None]
        along_RS = (offset_R3S * state_R9[:, :3, None]).sum(1)
        beyond_RS = ((along_RS - state_R9[:, 7:8]).abs() - _ALONG_M).clamp_min_(0)
        far_RS = offset_R3S.square_().sum(1) - along_RS.square_() + beyond_RS.square_()
        nearest.append(far_RS.topk(int(rank_K[-1]) + 1, largest=False).indices[:, rank_K])
    return position_S3[torch.cat(nearest)].transpose(1, 2), weight_K


def lit_track_scores(
    state_B9: Tensor, pulses: PaddedPulses, table: Tensor, beside: tuple[Tensor, Tensor], share_B1: Tensor
) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of lit tracks, and its derivatives by a step, a pulse each (B, 7, L).

    The derivative of the light that is expected in all is a part of each pulse's. ``beside``: sensors_beside();
    ``share_B1``: share of the event's pulses that these are.
    """
    (sensors_B3K, weight_K), medium, end = beside, pulses.medium, pulses.time_BL.shape[1]
    seen = _seen(state_B9, torch.cat([pulses.position_B3L, sensors_B3K], 2))
    # Each pulse and sensor has a copy of the parameters: the gradient by it is its score.
    copies = (seen[0], seen[1], *(state_B9[:, at : at + 1].expand_as(seen[0]).contiguous() for at in (6, 7, 8)))
    with torch.enable_grad():
        along_BN, rho_BN, time_BN, place_BN, lg_energy_BN = leaves = [one.detach().requires_grad_() for one in copies]
        ln_track_BN, ln_shower_BN, range_BN = _ln_light(along_BN - place_BN, rho_BN, lg_energy_BN, medium)
        since_BL, rho_BL, range_BL = pulses.time_BL - time_BN[:, :end], rho_BN[:, :end], range_BN[:, :end]
        of_track_BL = _late(since_BL, along_BN[:, :end], rho_BL, medium)
        of_shower_BL = since_BL - place_BN[:, :end] / LIGHT_SPEED_M_NS - range_BL * medium.point_delay_ns_m
        density = partial(light.ln_density, table[:, :1], medium=medium)
        ln_track_BL = ln_track_BN[:, :end] + density(rho_BL / medium.sin_cherenkov, of_track_BL)[0]
        ln_shower_BL = ln_shower_BN[:, :end] + density(range_BL, of_shower_BL)[0]
        rate_BL = (ln_track_BL.exp() + ln_shower_BL.exp() + light.NOISE_PER_NS) * share_B1
        light_BK = (ln_track_BN[:, end:].exp() + ln_shower_BN[:, end:].exp()) * (weight_K * share_B1)
        value_B = (rate_BL.log() * pulses.present_BL).sum(1) - light_BK.sum(1)
        by_along_BN, by_rho_BN, by_time_BN, by_place_BN, by_lg_energy_BN = torch.autograd.grad(value_B.sum(), leaves)
    by_track = _by_step(by_time_BN, by_along_BN, by_rho_BN, seen)
    score_B7N = torch.stack([*by_track, by_place_BN * _PLACE_STEP_M, by_lg_energy_BN], 1)
    part_B1L = (pulses.present_BL / pulses.present_BL.sum(1, keepdim=True)).unsqueeze(1)
    return value_B.detach(), score_B7N[:, :, :end] + score_B7N[:, :, end:].sum(2, keepdim=True) * part_B1L


def _ln_light(ahead_BN: Tensor, rho_BN: Tensor, lg_energy_BN: Tensor, medium: Medium) -> tuple[Tensor, Tensor, Tensor]:
    """Return ln of the light in sensors, photo-electrons, of tracks and of their showers, as the simulator has it.

    And the distance from the shower, m. (B, N) each. ``ahead``: place along the track, from the shower, m.
    """
    path_BN, energy_BN = rho_BN / medium.sin_cherenkov, 10**lg_energy_BN
    half_BN = (energy_BN / light.TRACK_GEV_PER_M).clamp_max(light.LONGEST_TRACK_M) / 2
    origin_BN = (ahead_BN - path_BN * medium.cos_cherenkov).abs()
    amount_BN = light.TRACK_LIGHT_PE * (1 + energy_BN / light.TRACK_LOSS_GEV) / (1 + path_BN / light.TRACK_NEAR_M)
    ln_track_BN = F.logsigmoid((half_BN - origin_BN) / _SOFT_END_M) - path_BN / medium.absorption_m + amount_BN.log()
    range_BN = (ahead_BN.square() + rho_BN.square()).sqrt()
    by_angle_BN = light.shower_light_by_angle(ahead_BN / range_BN, medium)
    amount_BN = light.TRACKS_CASCADE * light.CASCADE_LIGHT_PE_PER_GEV * energy_BN * by_angle_BN
    ln_shower_BN, most = light.ln_shower_light(range_BN, medium) + amount_BN.log(), math.log(light.MOST_PE)
    return ln_track_BN.clamp_max(most), ln_shower_BN.clamp_max(most), range_BN
