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
of the shower (200 m) and the logarithm. Its derivatives are differences of the likelihood.

N tracks, X points of the differences, K sensors; the others as in fits.py.
"""

from __future__ import annotations

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
    residual_BL = _track_seen(state_B7, pulses)[0]
    state_B7[:, 6] = light.first_quartile(residual_BL, pulses.charge_BL > 0)
    return state_B7


def track_scores(state_B7: Tensor, pulses: PaddedPulses, table: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of tracks, and its derivatives by a step, a pulse each (B, 5, L)."""
    residual_BL, rho_BL, along_BL, first_BL, second_BL = _track_seen(state_B7, pulses)
    medium, path_BL = pulses.medium, rho_BL / pulses.medium.sin_cherenkov
    value_BL, by_ln_distance_BL, by_residual_BL = light.ln_density(table, path_BL, residual_BL, medium)
    slope_BL = by_residual_BL * pulses.present_BL
    by_rho_BL = by_ln_distance_BL * pulses.present_BL / rho_BL - slope_BL * medium.cone_delay_ns_m
    # A tilt moves the sensor along the track and, by -l, across it.
    turn_BL = by_rho_BL * along_BL + slope_BL * rho_BL / LIGHT_SPEED_M_NS
    score_BL5 = [
        slope_BL * -light.TIME_STEP_NS,
        -first_BL * turn_BL,
        -second_BL * turn_BL,
        first_BL * by_rho_BL * -light.SHIFT_STEP_M,
        second_BL * by_rho_BL * -light.SHIFT_STEP_M,
    ]
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


def _track_seen(state_B7: Tensor, pulses: PaddedPulses) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Time residual, distance to the track, length along it, and the two parts of the unit vector across. (B, L)."""
    travel_B3, point_B3, time_B1 = state_B7.split((3, 3, 1), 1)
    x_BL, y_BL, z_BL = (pulses.position_B3L - point_B3.unsqueeze(2)).unbind(1)
    along_BL, first_BL, second_BL = (
        (axis_B3[:, 0:1] * x_BL).addcmul_(axis_B3[:, 1:2], y_BL).addcmul_(axis_B3[:, 2:3], z_BL)
        for axis_B3 in (travel_B3, *across(travel_B3))
    )
    rho_BL = (first_BL.square() + second_BL.square()).clamp_min(light.NEAREST_M**2).sqrt()
    residual_BL = pulses.time_BL - time_B1 - along_BL / LIGHT_SPEED_M_NS - rho_BL * pulses.medium.cone_delay_ns_m
    return residual_BL, rho_BL, along_BL, first_BL / rho_BL, second_BL / rho_BL


# ---- All light.

_FIRST_LG_ENERGY = 3.3
_PLACE_STEP_M = 200.0
_DIFFERENCES = (0.03, 0.003, 0.003, 0.02, 0.02, 0.05, 0.03)
"""Steps of each parameter, between which the likelihood's differences are its derivatives."""
_SOFT_END_M = 10.0
"""Length over which the light of a track fades at its ends: the likelihood has no edges."""
_STRATA = ((96, 1), (64, 4), (64, 16))
_ALONG_M = 600.0
"""Sensors within this of the shower, along the track, are ordered by their distance to the track alone."""


def lit_track(state_B7: Tensor, pulses: PaddedPulses) -> Tensor:
    """Return tracks with their shower in the middle of the pulses, clean ones first. (B, 7) -> (B, 9)."""
    along_BL, _ = _beside(state_B7, pulses.position_B3L)
    weight_BL = (pulses.charge_BL > 0) + 1e-3 * pulses.present_BL  # thinning may have left no clean pulse
    middle_B1 = (along_BL * weight_BL).sum(1, keepdim=True) / weight_BL.sum(1, keepdim=True)
    return torch.cat([state_B7, middle_B1, torch.full_like(middle_B1, _FIRST_LG_ENERGY)], 1)


def moved_lit_track(state_B9: Tensor, step_B7: Tensor) -> Tensor:
    """Return lit tracks after a step. (B, 9), (B, 7) -> (B, 9)."""
    place_B1 = state_B9[:, 7:8] + _PLACE_STEP_M * step_B7[:, 5:6]
    lg_energy_B1 = state_B9[:, 8:] + step_B7[:, 6:]
    return torch.cat([moved_track(state_B9[:, :7], step_B7[:, :5]), place_B1, lg_energy_B1], 1)


def sensors_beside(state_B9: Tensor, position_S3: Tensor) -> tuple[Tensor, Tensor]:
    """Return places of sensors that the light is summed over, (B, 3, K), and the number each stands for, (K,)."""
    rank_K, weight_K = light.strata(_STRATA, len(position_S3))
    along_BS, rho_BS = _beside(state_B9, position_S3.T.expand(len(state_B9), 3, -1))
    beyond_BS = ((along_BS - state_B9[:, 7:8]).abs() - _ALONG_M).clamp_min(0)
    far_BS = rho_BS.square() + beyond_BS.square()
    nearest_BK = far_BS.topk(int(rank_K[-1]) + 1, largest=False).indices[:, rank_K]
    return position_S3[nearest_BK].transpose(1, 2), weight_K


def lit_track_scores(
    state_B9: Tensor, pulses: PaddedPulses, table: Tensor, beside: tuple[Tensor, Tensor], share_B1: Tensor
) -> tuple[Tensor, Tensor]:
    """ln likelihood (B,) of lit tracks, and its derivatives by a step, a pulse each (B, 7, L).

    The derivative of the light that is expected in all is a part of each pulse's. ``beside``: sensors_beside();
    ``share_B1``: share of the event's pulses that these are.
    """
    (sensors_B3K, weight_K), difference_7 = beside, torch.tensor(_DIFFERENCES)
    steps_87 = torch.cat([torch.zeros(1, 7), torch.diag(difference_7)])
    num_events, points = len(state_B9), len(steps_87)
    state_N9 = moved_lit_track(state_B9.repeat_interleave(points, 0), steps_87.repeat(num_events, 1))

    def at_points(values: Tensor) -> Tensor:
        return values.repeat_interleave(points, 0)

    rate_NL = _rate(state_N9, at_points(pulses.position_B3L), at_points(pulses.time_BL), table, pulses.medium)
    ln_rate_BXL = rate_NL.add_(light.NOISE_PER_NS).mul_(at_points(share_B1)).log_().view(num_events, points, -1)
    track_NK, shower_NK, *_ = _light(state_N9, at_points(sensors_B3K), pulses.medium)
    light_BX = (track_NK.add_(shower_NK) @ weight_K).view(num_events, points) * share_B1
    value_B = (ln_rate_BXL[:, 0] * pulses.present_BL).sum(1) - light_BX[:, 0]
    part_BL = pulses.present_BL / pulses.present_BL.sum(1, keepdim=True)
    score_B7L = (ln_rate_BXL[:, 1:] - ln_rate_BXL[:, :1]) * pulses.present_BL.unsqueeze(1)
    score_B7L -= (light_BX[:, 1:] - light_BX[:, :1]).unsqueeze(2) * part_BL.unsqueeze(1)
    return value_B, score_B7L / difference_7.unsqueeze(1)


def _rate(state_N9: Tensor, position_N3L: Tensor, time_NL: Tensor, table: Tensor, medium: Medium) -> Tensor:
    """Return the rate of pulses by light at these times, 1/ns. -> (N, L)."""
    track_NL, shower_NL, along_NL, rho_NL, range_NL = _light(state_N9, position_N3L, medium)
    since_NL = time_NL - state_N9[:, 6:7]
    of_track_NL = since_NL - along_NL / LIGHT_SPEED_M_NS - rho_NL * medium.cone_delay_ns_m
    of_shower_NL = since_NL - state_N9[:, 7:8] / LIGHT_SPEED_M_NS - range_NL * medium.point_delay_ns_m
    track_NL *= light.ln_density(table, rho_NL / medium.sin_cherenkov, of_track_NL, medium)[0].exp_()
    return track_NL.add_(shower_NL.mul_(light.ln_density(table, range_NL, of_shower_NL, medium)[0].exp_()))


def _light(state_N9: Tensor, position_N3L: Tensor, medium: Medium) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Light in sensors, photo-electrons, of a track and of its shower, as the simulator has it. (N, L) each.

    And the sensors' places: along the track, distance from it and from the shower, m.
    """
    along_NL, rho_NL = _beside(state_N9, position_N3L)
    energy_N1 = 10 ** state_N9[:, 8:]
    path_NL = rho_NL / medium.sin_cherenkov
    from_shower_NL = along_NL - state_N9[:, 7:8]
    end_N1 = (energy_N1 / light.TRACK_GEV_PER_M).clamp_max(light.LONGEST_TRACK_M) / 2
    origin_NL = (from_shower_NL - path_NL * medium.cos_cherenkov).abs_()
    track_NL = torch.sigmoid((end_N1 - origin_NL) / _SOFT_END_M) * (path_NL / -medium.absorption_m).exp_()
    track_NL *= light.TRACK_LIGHT_PE * (1 + energy_N1 / light.TRACK_LOSS_GEV) / (1 + path_NL / light.TRACK_NEAR_M)
    range_NL = (from_shower_NL.square() + rho_NL.square()).sqrt_()
    shower_NL = light.ln_shower_light(range_NL, medium).exp_()
    shower_NL *= light.shower_light_by_angle(from_shower_NL / range_NL, medium)
    shower_NL *= light.TRACKS_CASCADE * light.CASCADE_LIGHT_PE_PER_GEV * energy_N1
    return track_NL.clamp_max_(light.MOST_PE), shower_NL.clamp_max_(light.MOST_PE), along_NL, rho_NL, range_NL


def _beside(state_N9: Tensor, position_N3L: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sensors' places along tracks, from their points, and distances from them, m. (N, L) each."""
    offset_N3L = position_N3L - state_N9[:, 3:6, None]
    along_NL = (offset_N3L * state_N9[:, :3, None]).sum(1)
    rho_NL = (offset_N3L.square().sum(1) - along_NL.square()).clamp_min_(light.NEAREST_M**2).sqrt_()
    return along_NL, rho_NL
