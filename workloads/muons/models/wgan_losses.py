"""Score of the muon WGAN's critic, and the terms of its losses for a part of a microbatch.

Each loss is a sum over events, so that those of microbatches add up to their batch; the caller divides by the events of
the whole batch. ``present_E`` is (E,), 1.0 for an event with muons and 0.0 for an empty one, which critic and generator
ignore. (An index would need a host sync.)

The derivative of the energy score is written out: autograd would keep all pairs of generated events. Scores are in
float32 at least, whatever the rows are in.

Shape suffixes: E events, P particles, R rows (events or particles), F features, D width, S numbers of a row,
M generated events for each real one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_max, segment_mean, segment_sum, spread, wide

SCORE_LIMIT = 100.0
"""L in L·tanh(score / L), which bounds the critic's score smoothly: a rare huge event doesn't rule a batch."""
_MUON_WEIGHT = 0.75
"""Exponent of an event's weight N^x among the scores of muons. With 1, few large events make most of the noise."""
_SATURATED = 0.9
"""Part of SCORE_LIMIT above which a bounded score is near it: there the gradient is less than a fifth."""
_NORM_FLOOR = 1e-12
"""Keeps the slope of the square root finite where the gradient is 0; changes a norm of 1 by 5e-13."""
_DISTANCE_FLOOR = 1e-12
"""Keeps the slope of a distance finite at 0; features are standardised, so it is far below any relevant distance."""
_LN10 = 2.302585092994046


def raw_score(rows_ED: Tensor, projected_ED: Tensor, weight_1D: Tensor, bias_1: Tensor) -> Tensor:
    """Unbounded score of each event: row · (weight + projected / √D) + bias. (E, D), (E, D) -> (E,)."""
    return (wide(rows_ED) * _raw_slope(projected_ED, weight_1D)).sum(1) + bias_1


def bounded(scores: Tensor) -> Tensor:
    """Scores as the losses see them: L·tanh(score / L), L = SCORE_LIMIT."""
    return SCORE_LIMIT * torch.tanh(scores / SCORE_LIMIT)


def score_slope(rows_ED: Tensor, projected_ED: Tensor, weight_1D: Tensor, bias_1: Tensor) -> Tensor:
    """Slope of the bounded `raw_score` by the row. (E, D), (E, D) -> (E, D)."""
    tanh_E = torch.tanh(raw_score(rows_ED, projected_ED, weight_1D, bias_1) / SCORE_LIMIT)
    return _raw_slope(projected_ED, weight_1D) * (1 - tanh_E.square()).unsqueeze(1)


def _raw_slope(projected_ED: Tensor, weight_1D: Tensor) -> Tensor:
    """Slope of `raw_score` by the row. -> (E, D)."""
    return weight_1D + wide(projected_ED) / math.sqrt(weight_1D.shape[1])


class ScoreLoss(NamedTuple):
    """Loss by the scores, and sums that describe them."""

    loss: Tensor
    """()."""
    gap_and_near_2: Tensor
    """(2,): D(real) - D(fake) before saturation; the share of an event's two scores near their bound."""


def score_loss(scores_2E: Tensor, signs_2E: Tensor) -> ScoreLoss:
    """Critic loss Σ D(fake) - D(real), arXiv:1701.07875 equation 2 with the sign to minimise. (2 E,), (2 E,).

    ``scores_2E``: unbounded scores of the real events, then of the generated ones; D is L·tanh(score / L) with L =
    SCORE_LIMIT. ``signs_2E``: -1 for real events, then 1 for generated ones, 0 for empty. The generator's loss is
    -Σ D(fake), that of generated events with the signs of real ones: they count as real ones do for the critic.
    """
    bounded_2E = bounded(scores_2E)
    with torch.no_grad():
        is_near_2E = bounded_2E.abs() > _SATURATED * SCORE_LIMIT
        gap_and_near_2 = torch.stack([-(scores_2E * signs_2E).sum(), (is_near_2E * signs_2E.abs()).sum() / 2])
    return ScoreLoss((bounded_2E * signs_2E).sum(), gap_and_near_2)


class GradientPenalty(NamedTuple):
    """Penalty and gradient norm, both sums over events, ()."""

    penalty: Tensor
    norm: Tensor


def between(real_PF: Tensor, fake_PF: Tensor, segments: Segments, mix_E: Tensor) -> Tensor:
    """Points between each real and generated event. 2 times (P, F), muons in order of energy -> (P, F).

    ``mix_E`` (E,), uniform in [0, 1], is the share of the real event. A set has no order, so real and generated muons
    are paired by rank in the first feature, lg E: optimal transport in one dimension.
    """
    return torch.addcmul(fake_PF, spread(mix_E.unsqueeze(1), segments), real_PF - fake_PF)


def gradient_penalty(slope_PF: Tensor, segments: Segments, present_E: Tensor) -> GradientPenalty:
    """Gradient penalty Σ (‖∇D‖ - 1)²: arXiv:1704.00028, equation 3. ``slope_PF``: derivative of the events' scores.

    The norm is per event, and dual to the distance √(|Δ₁|² + Σᵢ |Δᵢ|² / N) of two events, i = 2 … N, where muon 1 is
    the leading one, the last of its event: √(|g₁|² + N Σᵢ |gᵢ|²). A slope then has the same meaning for 2 muons and for
    2000, and the critic may follow the leading muon as steeply as the mean of all others.
    """
    # A one-sided penalty and the plain norm √(Σ |g|²) were not better.
    last_E = segments.starts_E + segments.counts_E - 1
    last_P, counts_P = torch.stack([last_E, segments.counts_E]).index_select(1, segments.event_P)
    weight_P = torch.where(segments.particles_P == last_P, 1, counts_P)
    norm_E = (segment_sum(slope_PF.square().sum(1) * weight_P, segments) + _NORM_FLOOR).sqrt()
    return GradientPenalty(((norm_E - 1).square() * present_E).sum(), (norm_E.detach() * present_E).sum())


class EnergyScore(NamedTuple):
    """Sums of the energy score, (): a distance of generated bundles from real ones, without a critic.

    For a real value y and m independent generated ones xᵢ of the same primary and count,

        mean over i of |xᵢ - y|  -  ½ mean over i ≠ j of |xᵢ - xⱼ|

    has its smallest mean if and only if the xᵢ have the distribution of y (a strictly proper score: Gneiting & Raftery,
    JASA 102 (2007) 359, equation 22; training with it: arXiv:1606.02556, arXiv:2112.08217). It is unbiased on any
    batch: its gradient moves generated bundles to the right distribution from the first step on, and vanishes there.
    It is computed for single muons, those of an event with the weight N^0.75 together, and for a few features of an
    event that depend on its muons' correlations.
    """

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
    of_events_E = row_scores(generated_ES.unflatten(0, (times, -1)), real_ES)
    mean_E1 = segment_mean(row_scores(generated_MPF, real_PF).unsqueeze(1), segments)
    return EnergyScore((mean_E1.squeeze(1) * muons_weight_E).sum(), (of_events_E * weight_E).sum())


def row_scores(generated_MRS: Tensor, real_RS: Tensor) -> Tensor:
    """Energy score of each row. (M, R, S), (R, S) -> (R,). Only the generated ones have gradients, of first order."""
    scores_R: Tensor = _RowScores.apply(generated_MRS, real_RS)
    return scores_R


class _RowScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, generated_MRS: Tensor, real_RS: Tensor) -> Tensor:
        times = len(generated_MRS)
        generated_MSR = wide(generated_MRS).transpose(1, 2).contiguous()
        # All pairs at once, for few operators: each twice, and each value with itself, at the distance of the floor,
        # but for a weight of 0.
        among_MMSR = generated_MSR.unsqueeze(1) - generated_MSR
        to_real_MSR = generated_MSR - wide(real_RS).t()
        among_MMR, to_real_MR = _length(among_MMSR), _length(to_real_MSR)
        slope_MSR = to_real_MSR / (times * to_real_MR).unsqueeze(1)
        slope_MSR -= (among_MMSR / among_MMR.unsqueeze(2)).sum(1) / (times * (times - 1))
        ctx.save_for_backward(slope_MSR)
        ctx.generated_dtype = generated_MRS.dtype
        among_R = among_MMR.sum((0, 1)) - times * math.sqrt(_DISTANCE_FLOOR)
        return to_real_MR.mean(0) - among_R / (2 * times * (times - 1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the energy score can be differentiated once only")
        (slope_MSR,) = ctx.saved_tensors
        return (slope_MSR * gradients[0]).transpose(1, 2).to(ctx.generated_dtype), None


def _length(apart_S_R: Tensor) -> Tensor:
    """Length of the vectors of the last dimension but one. (…, S, R) -> (…, R)."""
    square: Tensor = apart_S_R.square().sum(-2)
    return square.add_(_DISTANCE_FLOOR).sqrt_()


def event_summary(features_PF: Tensor, segments: Segments, lg_energy_spread: Tensor) -> Tensor:
    """Mean of each feature, of (lg E) x feature, largest lg E, lg of the summed energy. (P, F) -> (E, S).

    Units are those of the standardised features; 0 for an empty event.
    """
    energy_P1 = features_PF[:, :1]
    means_E = segment_mean(torch.cat([features_PF, energy_P1 * features_PF], 1), segments)
    largest_E1, _ = segment_max(energy_P1, segments)
    ln_scale = lg_energy_spread * _LN10
    relative_P1 = ((energy_P1 - spread(largest_E1, segments)) * ln_scale).exp()
    log_sum_E1 = segment_sum(relative_P1, segments).clamp_min(1.0).log() / ln_scale
    return torch.cat([means_E, largest_E1, log_sum_E1 + largest_E1], 1)
