"""Direction of a cascade, from the light that each sensor saw or didn't see: the mean of its posterior.

A cascade shines most at the Cherenkov angle to its direction. A few dozen photo-electrons tell of that only if the
sensors without light count as well, and vertex and direction are hardly known apart: the likelihood has no one maximum
to be found by steps. So the posterior is sampled by population Monte Carlo (Cappé, Guillin, Marin and Robert 2004):
points of vertex and time are drawn from a normal distribution, start at the fit of a point source, and are weighted by
their likelihood, summed over directions all over the sphere; mean and covariance of the weighted points give the next
distribution. The likelihood counts a part of its logarithm only at first, so that few points suffice.

Pulses are a Poisson process. The rate in a sensor at the distance R, seen at the angle ψ to the direction of travel, is
A exp(-R / absorption) / (1 + R / 3 m)^1.5 (0.15 + exp(-3 |cos ψ - cos θ|)), θ the Cherenkov angle; its times have the
Pandel density; and there is noise. A, which stands for the energy, is the number of clean pulses over the rest of the
rate, summed over the detector: near sensors each, of further ones some for many. Of more than MOST_PULSES pulses
every second, third, ... is used, which changes A and nothing else.

The same points are drawn for every event: nothing is random. E events; of a batch: B events, M points, L places for
pulses, K sensors, G directions.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from workloads.direction import light
from workloads.direction.light import EventPulses, PaddedPulses

MOST_PULSES = 128
"""Pulses of an event that are used, at most."""
_PLACES = 1 << 11
"""Places for pulses in a batch, about: its tensors stay in the processor's cache."""
_POINTS = 32
_ROUNDS = ((16, 0.25), (16, 0.5), (16, 0.8), (48, 1.0))
"""Directions of each round, and part of the ln likelihood that weighs its points. The last two make the result."""
_START = (25.0, 25.0, 25.0, 80.0)
"""Standard deviations of the first points: errors of a point source's position, m, and time, ns."""
_LEAST_VARIANCE = (9.0, 9.0, 9.0, 36.0)
_WIDER = 1.3
"""Standard deviation of the next points, relative to that of the weighted ones."""
_STRATA = ((32, 1), (32, 4), (32, 16), (16, 64))
"""Sensors, in the order of their distance from the fitted vertex: how many, each of which stands for how many."""
_LEAST_PE, _MOST_PE = 0.1, 2000.0


def cascade_posteriors(pulses: EventPulses, vertex_E4: Tensor) -> Tensor:
    """Mean of each event's posterior, as the fields `cascade_…` of CLASSICAL_FITS; 0 without pulses. -> (E, 5).

    The direction of the source (a mean of unit vectors: the longer, the better known), ln of A in photo-electrons, and
    ln of the evidence a pulse. ``vertex_E4``: position and time of the point source.
    """
    geometry = pulses.geometry
    found_E5 = torch.zeros(pulses.segments.num_events, 5)
    position_S3 = torch.from_numpy(geometry.position_S3)
    rank_K, weight_K = light.strata(_STRATA, len(geometry))
    for batch in light.padded_batches(light.thinned_pulses(pulses, MOST_PULSES)[0], _PLACES):
        vertex_B4 = vertex_E4[batch.event_B]
        apart_BS3 = vertex_B4[:, None, :3] - position_S3
        nearest_BS = apart_BS3.square().sum(2).topk(int(rank_K[-1]) + 1, largest=False).indices
        sensors_B3K = position_S3[nearest_BS[:, rank_K]].transpose(1, 2)
        found_E5[batch.event_B] = _posterior(batch, vertex_B4, sensors_B3K, weight_K)
    return found_E5


def _posterior(pulses: PaddedPulses, vertex_B4: Tensor, sensors_B3K: Tensor, weight_K: Tensor) -> Tensor:
    """Population Monte Carlo of a batch. -> (B, 5)."""
    normal_M4 = _normal_points()
    mean_B4, factor_B44 = vertex_B4, torch.diag(torch.tensor(_START)).expand(len(vertex_B4), 4, 4)
    rounds, light_B = [], (pulses.charge_BL > 0).sum(1).clamp_min(1).float()
    for num_directions, part in _ROUNDS:
        points_BM4 = mean_B4.unsqueeze(1) + normal_M4 @ factor_B44.mT
        travel_G3 = sphere(num_directions)
        ln_BMG, amount_BMG, light_B = _ln_likelihood(points_BM4, travel_G3, light_B, pulses, sensors_B3K, weight_K)
        ln_BMG -= math.log(num_directions)
        rounds.append((points_BM4, travel_G3, ln_BMG, amount_BMG, (mean_B4, factor_B44)))
        weight_BM1 = (part * ln_BMG.logsumexp(2) + normal_M4.square().sum(1) / 2).softmax(1).unsqueeze(2)
        mean_B4 = (weight_BM1 * points_BM4).sum(1)
        apart_BM4 = points_BM4 - mean_B4.unsqueeze(1)
        covariance_B44 = _WIDER**2 * (weight_BM1 * apart_BM4).mT @ apart_BM4 + torch.diag(torch.tensor(_LEAST_VARIANCE))
        factor_B44 = torch.linalg.cholesky_ex(covariance_B44)[0]
    # Each point of the last rounds counts with its density under all of them.
    rounds = rounds[-2:]
    ln_weights = [
        ln_BMG - torch.stack([_ln_normal(points, *normal) for *_, normal in rounds]).logsumexp(0).unsqueeze(2)
        for points, _, ln_BMG, *_ in rounds
    ]
    evidence_B1 = torch.cat([ln.flatten(1) for ln in ln_weights], 1).logsumexp(1, keepdim=True)
    found_B4 = torch.zeros(len(vertex_B4), 4)
    for ln_BMG, (_, travel_G3, _, amount_BMG, _) in zip(ln_weights, rounds, strict=True):
        weight_BMG = (ln_BMG - evidence_B1.unsqueeze(2)).exp()
        found_B4[:, :3] -= weight_BMG.sum(1) @ travel_G3
        found_B4[:, 3] += (weight_BMG * amount_BMG.log()).sum((1, 2))
    return torch.cat([found_B4, evidence_B1 / pulses.present_BL.sum(1, keepdim=True)], 1)


def _ln_likelihood(
    points_BM4: Tensor,
    travel_G3: Tensor,
    light_B: Tensor,
    pulses: PaddedPulses,
    sensors_B3K: Tensor,
    weight_K: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """ln likelihood, and A in photo-electrons, of points in each direction of travel, (B, M, G) each.

    ``light_B``: number of pulses that are of the cascade; the third result is that of the likeliest point.
    """
    medium = pulses.medium
    unit_BM3L, distance_BML = _seen(points_BM4, pulses.position_B3L)
    residual_BML = pulses.time_BL.unsqueeze(1) - points_BM4[:, :, 3:] - distance_BML * medium.point_delay_ns_m
    table = light.ln_density_table(light.JITTER_NS, medium)
    ln_time_BML = light.ln_density(table, distance_BML, residual_BML, medium)[0]
    rate_BMLG = light.shower_light_by_angle(unit_BM3L.mT @ travel_G3.T, medium)
    rate_BMLG *= (ln_time_BML + light.ln_shower_light(distance_BML, medium)).exp_().unsqueeze(3)
    unit_BM3K, distance_BMK = _seen(points_BM4, sensors_B3K)
    light_BM1K = (light.ln_shower_light(distance_BMK, medium).exp_() * weight_K).unsqueeze(2)
    light_BMG = (light_BM1K @ light.shower_light_by_angle(unit_BM3K.mT @ travel_G3.T, medium)).squeeze(2)
    amount_BMG = (light_B.view(-1, 1, 1) / light_BMG).clamp(_LEAST_PE, _MOST_PE)
    rate_BMLG.mul_(amount_BMG.unsqueeze(2)).add_(light.NOISE_PER_NS).log_()
    ln_BMG = (pulses.present_BL.view(len(points_BM4), 1, 1, -1) @ rate_BMLG).squeeze(2)
    ln_BMG = ln_BMG - amount_BMG * light_BMG
    point_B, direction_B = torch.unravel_index(ln_BMG.flatten(1).argmax(1), ln_BMG.shape[1:])
    rate_BL = rate_BMLG[torch.arange(len(ln_BMG)), point_B, :, direction_B].exp()
    light_B = ((1 - light.NOISE_PER_NS / rate_BL) * pulses.present_BL).sum(1)
    return ln_BMG, amount_BMG, light_B.clamp_min(1)


def _seen(points_BM4: Tensor, position_B3L: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (B, M, 3, L) from points to places, and distances (B, M, L)."""
    offset_BM3L = position_B3L.unsqueeze(1) - points_BM4[:, :, :3, None]
    distance_BML = offset_BM3L.square().sum(2).clamp_min_(light.NEAREST_M**2).sqrt_()
    return offset_BM3L.div_(distance_BML.unsqueeze(2)), distance_BML


def _ln_normal(points_BM4: Tensor, mean_B4: Tensor, factor_B44: Tensor) -> Tensor:
    """ln density of normal distributions, up to a constant; ``factor``: of their covariance. -> (B, M)."""
    scaled_B4M = torch.linalg.solve_triangular(factor_B44, (points_BM4 - mean_B4.unsqueeze(1)).mT, upper=False)
    ln_volume_B1 = factor_B44.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
    ln_density_BM: Tensor = -scaled_B4M.square().sum(1) / 2 - ln_volume_B1
    return ln_density_BM


@lru_cache(maxsize=1)
def _normal_points() -> Tensor:
    """Points of a normal distribution of variance 1, from a Sobol sequence. -> (M, 4)."""
    uniform_M4: Tensor = SobolEngine(4, scramble=True, seed=1).draw(_POINTS)  # type: ignore[no-untyped-call]
    normal_M4: Tensor = torch.special.ndtri(uniform_M4.clamp(1e-4, 1 - 1e-4))
    return normal_M4


@lru_cache(maxsize=4)
def sphere(num_directions: int) -> Tensor:
    """Unit vectors all over the sphere, equally dense: a Fibonacci lattice. -> (G, 3)."""
    number_G = torch.arange(num_directions, dtype=torch.float64) + 0.5
    z_G = 1 - 2 * number_G / num_directions
    azimuth_G, radius_G = math.pi * (1 + math.sqrt(5)) * number_G, (1 - z_G**2).sqrt()
    return torch.stack([radius_G * azimuth_G.cos(), radius_G * azimuth_G.sin(), z_G], 1).float()
