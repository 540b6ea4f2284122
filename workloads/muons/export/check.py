"""Check of exported functions against the trained modules: test inputs and expected outputs.

Shape suffixes: E events, P particles, K mixture components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from workloads.base.random_streams import stream_seed
from workloads.muons.export.functions import CountsFunction, GeneratorFunction
from workloads.muons.export.inputs import FunctionInput
from workloads.muons.models.count_head import CountMixture
from workloads.muons.models.standardise import DEPTH_OFFSET_M, Standardise
from workloads.muons.purposes import MuonPurpose

LARGEST_DIFFERENCE = 1e-4
"""Largest allowed difference, relative to the larger of value and 1. Rounding: 1e-6 to 1e-5 (energies are 10^x)."""

Function = Callable[..., Sequence[Tensor]]
"""Exported function: tensors in, tensors out."""
_BOUND = 1e-5
"""Distance of a uniform number from a bound between components within which rounding may choose the other one."""
_LEAST_COMPARED = 0.5
"""Least part of the muons that is compared."""
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


def generator_inputs(
    function: GeneratorFunction, num_events: int, num_particles: int, seed: int = 1
) -> tuple[Tensor, ...]:
    """Arguments of an exported generator; some events have no particles."""
    random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_GENERATOR, seed))
    event_P = torch.randint(0, num_events, (num_particles,), generator=random).sort().values

    def made(one: FunctionInput) -> Tensor:
        rows = num_events if one.rows == "events" else num_particles
        shape = (rows, one.width) if one.width else (rows,)
        match one.kind:
            case "primary":
                return typical_primaries(function.standardise, num_events, random)
            case "counts":
                return torch.bincount(event_P, minlength=num_events)
            case "event":
                return event_P
            case "normal":
                return torch.randn(shape, generator=random)
            case "uniform":
                return torch.rand(shape, generator=random)

    return tuple(made(one) for one in function.inputs)


def generator_difference(found: Function, function: GeneratorFunction) -> float:
    """Largest relative difference over cases with no, one and many particles and events; infinite for other shapes."""
    cases = [generator_inputs(function, *sizes, seed) for seed, sizes in enumerate(_SIZES)]
    sure = torch.cat([_sure(function, inputs) for inputs in cases])
    if sure.sum() < _LEAST_COMPARED * len(sure):
        return math.inf
    return max(muons_difference(found, function, inputs) for inputs in cases)


def muons_difference(found: Function, function: GeneratorFunction, inputs: tuple[Tensor, ...]) -> float:
    """Largest relative difference for these inputs, without muons that rounding may change: see FunctionInput.

    Such a muon may be another one in another program, and as good.
    """
    found_P3, expected_P3 = found(*inputs)[0], function.trained_muons(inputs)
    if found_P3.shape != expected_P3.shape:
        return math.inf
    sure_P = _sure(function, inputs)
    return _difference([found_P3[sure_P]], [expected_P3[sure_P]])


def _sure(function: GeneratorFunction, inputs: tuple[Tensor, ...]) -> Tensor:
    """True for muons that no number near the bound of two components decides. -> (P,) bool."""
    expected_P3 = function.trained_muons(inputs)
    sure_P = torch.ones(len(expected_P3), dtype=torch.bool)
    if any(one.chooses for one in function.inputs):
        for step in (-_BOUND, _BOUND):
            pairs = zip(function.inputs, inputs, strict=True)
            moved = tuple(values + step if one.chooses else values for one, values in pairs)
            sure_P &= (function.trained_muons(moved) == expected_P3).all(1)
    return sure_P


@torch.no_grad()
def counts_difference(found: Function, function: CountsFunction) -> float:
    """Largest relative difference of the distribution of counts."""
    worst = 0.0
    for seed, num_events in enumerate((1, 2, 300)):
        random = torch.Generator().manual_seed(stream_seed(MuonPurpose.EXPORT_COUNTS, seed))
        primary_E4 = typical_primaries(function.standardise, num_events, random)
        mixture: CountMixture = function.count_head(function.standardise.conditions(primary_E4))
        worst = max(worst, _difference(found(primary_E4), [values_EK.exp() for values_EK in mixture]))
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
