"""Check of exported functions against the trained modules: test inputs and expected outputs.

Shape suffixes: E events, P particles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from workloads.base.random_streams import stream_seed
from workloads.base.segments import Segments
from workloads.muons.models.count_head import CountMixture
from workloads.muons.models.standardise import DEPTH_OFFSET_M, Standardise
from workloads.muons.models.wgan.sampler import WganSampler
from workloads.muons.purposes import MuonPurpose

LARGEST_DIFFERENCE = 1e-4
"""Largest allowed difference, relative to the larger of value and 1. Rounding: 1e-6 to 1e-5 (energies are 10^x)."""

Function = Callable[..., Sequence[Tensor]]
"""Exported function: tensors in, tensors out."""
_SIZES = ((1, 0), (3, 0), (1, 1), (1, 300), (40, 1), (200, 3000), (257, 64))


def typical_primaries(standardise: Standardise, num: int, random: torch.Generator) -> Tensor:
    """Primaries in the training's range: with its mean and spread in each condition. (E, 4)."""
    drawn_EC = standardise.condition_mean_C + standardise.condition_spread_C * torch.randn(num, 5, generator=random)
    lg_energy_E, _, cos_zenith_E, lg_mass_E, lg_depth_E = drawn_EC.unbind(1)
    return torch.stack(
        [
            10**lg_energy_E,
            cos_zenith_E.clamp(0.15, 1).acos(),
            10 ** lg_mass_E.clamp_min(0),
            (10**lg_depth_E - DEPTH_OFFSET_M).clamp_min(0),
        ],
        1,
    )


def generator_inputs(sampler: WganSampler, num_events: int, num_particles: int, seed: int = 1) -> tuple[Tensor, ...]:
    """Arguments of GeneratorFunction; some events have no particles."""
    random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_GENERATOR, seed))
    event_P = torch.randint(0, num_events, (num_particles,), generator=random).sort().values
    network = sampler.generator
    return (
        typical_primaries(sampler.standardise, num_events, random),
        torch.bincount(event_P, minlength=num_events),
        torch.randn(num_events, network.z_global, generator=random),
        torch.randn(num_particles, network.z_local, generator=random),
        torch.rand(num_particles, generator=random),
        event_P,
    )


@torch.no_grad()
def trained_muons(sampler: WganSampler, inputs: tuple[Tensor, ...]) -> Tensor:
    """Muons from the trained modules for the same inputs, each module called separately."""
    primary_E4, counts_E, z_global_EZ, z_local_PZ, azimuth_P, _ = inputs
    segments = Segments.from_counts(counts_E, len(z_local_PZ))
    noise = z_global_EZ, z_local_PZ
    features_PF = sampler.generator(sampler.standardise.conditions(primary_E4), segments, noise)
    most = sampler.config.sampling.max_deviation
    muons_P3 = sampler.standardise.muons(features_PF.clamp(-most, most), torch.Generator())  # angles: see below
    if not sampler.standardise.symmetric:
        return muons_P3
    radius_P, angle_P = torch.hypot(muons_P3[:, 1], muons_P3[:, 2]), azimuth_P * (2 * math.pi)
    return torch.stack([muons_P3[:, 0], radius_P * angle_P.cos(), radius_P * angle_P.sin()], 1)


def generator_difference(function: Function, sampler: WganSampler) -> float:
    """Largest relative difference over cases with no, one and many particles and events; infinite for other shapes."""
    worst = 0.0
    for seed, (num_events, num_particles) in enumerate(_SIZES):
        inputs = generator_inputs(sampler, num_events, num_particles, seed)
        worst = max(worst, _difference(function(*inputs), [trained_muons(sampler, inputs)]))
    return worst


@torch.no_grad()
def counts_difference(function: Function, sampler: WganSampler) -> float:
    """Largest relative difference of the distribution of counts."""
    worst = 0.0
    for seed, num_events in enumerate((1, 2, 300)):
        random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_COUNTS, seed))
        primary_E4 = typical_primaries(sampler.standardise, num_events, random)
        mixture: CountMixture = sampler.count_head(sampler.standardise.conditions(primary_E4))
        worst = max(worst, _difference(function(primary_E4), [values_EK.exp() for values_EK in mixture]))
    return worst


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            return math.inf
        if one.numel():
            relative = ((one - other).abs() / other.abs().clamp_min(1)).max()
            worst = max(worst, float(relative.nan_to_num(math.inf)))
    return worst
