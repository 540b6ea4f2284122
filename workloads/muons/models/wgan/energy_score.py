"""Energy score: a distance of generated bundles from real ones, without a critic.

For a real value y and m independent generated ones xᵢ of the same primary and count,

    mean over i of |xᵢ - y|  -  ½ mean over i ≠ j of |xᵢ - xⱼ|

has its smallest mean if and only if the xᵢ have the distribution of y (a strictly proper score: Gneiting & Raftery,
JASA 102 (2007) 359, equation 22; training with it: arXiv:1606.02556, arXiv:2112.08217). It is unbiased on any batch:
its gradient moves generated bundles to the right distribution from the first step on, and vanishes there. It is
computed for single muons, those of an event with the weight N^0.75 together, and for a few features of an event that
depend on its muons' correlations.

Shape suffixes: E events, P particles, F features, S summary numbers of an event.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workloads.base.native.scores import energy_scores, library_for_scores
from workloads.base.segments import Segments, pool, segment_sum, spread

# Keeps the slope of a distance finite at 0; features are standardised, so it is far below any relevant distance.
_DISTANCE_FLOOR = 1e-12
_MUON_WEIGHT = 0.75
"""Exponent of an event's weight N^x among the scores of muons. With 1, few large events make most of the noise."""
_LN10 = 2.302585092994046


class EnergyScore(NamedTuple):
    """Sums of the energy score, ()."""

    of_muons: Tensor
    """Sum over events of the mean over their muons, with ``event_weight``."""
    of_events: Tensor
    """Sum over events with muons, of their summaries."""


def event_weight(segments: Segments, present_E: Tensor) -> Tensor:
    """Weight of each event among the scores of muons, by its whole number of muons; 0 if it isn't present. (E,)."""
    return segments.sizes_E.float() ** _MUON_WEIGHT * present_E


def energy_score(
    generated_MPF: Tensor, real_PF: Tensor, segments: Segments, weights: tuple[Tensor, Tensor], lg_energy_spread: Tensor
) -> EnergyScore:
    """Energy score of events that were generated M times, at least twice. (M, P, F), (P, F).

    ``weights``, 2 times (E,): of the events' muons, `event_weight`, and of the events, 1; 0 for events without muons.
    ``lg_energy_spread``, (): standard deviation of lg E, by which the first feature was divided.

    Muons are paired by position: the generated ones of an event are in no order, so any pairing is independent of
    their values.
    """
    times, (muons_weight_E, weight_E) = len(generated_MPF), weights
    generated_ES, real_ES = event_summary(
        torch.cat([generated_MPF.flatten(0, 1), real_PF]), segments.repeated(times + 1), lg_energy_spread
    ).split([times * segments.num_events, segments.num_events])
    of_events_E = _score(generated_ES.unflatten(0, (times, -1)), real_ES)
    mean_E = segment_sum(_score(generated_MPF, real_PF), segments) / segments.counts_E.clamp_min(1)
    return EnergyScore((mean_E * muons_weight_E).sum(), (of_events_E * weight_E).sum())


def event_summary(features_PF: Tensor, segments: Segments, lg_energy_spread: Tensor) -> Tensor:
    """Mean of each feature, of (lg E) x feature, largest lg E, lg of the summed energy. (P, F) -> (E, S).

    Units are those of the standardised features; 0 for an empty event.
    """
    energy_P1 = features_PF[:, :1]
    means_E = pool(torch.cat([features_PF, energy_P1 * features_PF], 1), segments, ("mean",))
    largest_E1 = pool(energy_P1, segments, ("max",))
    ln_scale = lg_energy_spread * _LN10
    relative_P1 = ((energy_P1 - spread(largest_E1, segments)) * ln_scale).exp()
    log_sum_E1 = segment_sum(relative_P1, segments).clamp_min(1.0).log() / ln_scale
    return torch.cat([means_E, largest_E1, log_sum_E1 + largest_E1], 1)


def _score(generated_MRS: Tensor, real_RS: Tensor) -> Tensor:
    """Energy score of each row. (M, R, S), (R, S) -> (R,)."""
    score_R: Tensor = _RowScores.apply(generated_MRS, real_RS)
    return score_R


class _RowScores(torch.autograd.Function):
    """Energy scores, with their gradient by the generated values written out: few operators on all pairs at once."""

    @staticmethod
    def forward(ctx: Any, generated_MRS: Tensor, real_RS: Tensor) -> Tensor:
        if library := library_for_scores(generated_MRS):
            score_R, slope_MRS = energy_scores(library, generated_MRS, real_RS, _DISTANCE_FLOOR)
            ctx.save_for_backward(slope_MRS)
            return score_R
        times = len(generated_MRS)
        generated_MSR = generated_MRS.transpose(1, 2).contiguous()
        # Each pair twice, and each value with itself, at the distance of the floor, but for a weight of 0.
        among_MMSR = generated_MSR.unsqueeze(1) - generated_MSR
        to_real_MSR = generated_MSR - real_RS.t()
        among_MMR, to_real_MR = _length(among_MMSR), _length(to_real_MSR)
        slope_MSR = to_real_MSR / (times * to_real_MR).unsqueeze(1)
        slope_MSR -= (among_MMSR / among_MMR.unsqueeze(2)).sum(1) / (times * (times - 1))
        ctx.save_for_backward(slope_MSR.transpose(1, 2))
        return to_real_MR.mean(0) - (among_MMR.sum((0, 1)) - times * math.sqrt(_DISTANCE_FLOOR)) / (
            2 * times * (times - 1)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope_MRS,) = ctx.saved_tensors
        return slope_MRS * gradients[0].unsqueeze(1), None


def _length(apart_S_R: Tensor) -> Tensor:
    """Length of the vectors of the last dimension but one. (…, S, R) -> (…, R)."""
    square: Tensor = apart_S_R.square().sum(-2)
    return square.add_(_DISTANCE_FLOOR).sqrt_()
