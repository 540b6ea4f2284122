"""Losses of the muon WGAN. Each is a sum over events, so that those of microbatches add up to their batch.

The caller divides by the events of the whole batch. ``present_E`` is (E,), 1.0 for an event with muons and
0.0 for an empty one, which critic and generator ignore. (An index would need a host sync.)
Shape suffixes: E events, P particles, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_sum, spread

# Keeps the slope of the square root finite where the gradient is 0; changes a norm of 1 by 5e-13.
NORM_FLOOR = 1e-12


def critic_loss(scores_2E: Tensor, signs_2E: Tensor) -> Tensor:
    """Critic loss Σ D(fake) - D(real), arXiv:1701.07875 equation 2 with the sign to minimise. (2 E,), (2 E,) -> ().

    ``scores_2E``: those of the real events, then of the generated ones. ``signs_2E``: see `signs`.
    """
    return (scores_2E * signs_2E).sum()


def signs(present_E: Tensor) -> Tensor:
    """Sign of each score in the critic loss: -1 for real events, then 1 for generated ones, 0 for empty. (2 E,)."""
    return torch.cat([-present_E, present_E])


def generator_loss(fake_scores_E: Tensor, present_E: Tensor) -> Tensor:
    """Generator loss -Σ D(fake). (E,), (E,) -> ()."""
    return -(fake_scores_E * present_E).sum()


class GradientPenalty(NamedTuple):
    """Penalty and gradient norm, both sums over events, ()."""

    penalty: Tensor
    norm: Tensor


def between(real_PF: Tensor, fake_PF: Tensor, segments: Segments, mix_E: Tensor) -> Tensor:
    """Points between each real and generated event. 2 times (P, F), muons in order of energy -> (P, F).

    ``mix_E`` (E,), uniform in [0, 1], is the share of the real event. A set has no order, so real and generated muons
    are paired by rank in the first feature, lg E: optimal transport in one dimension.
    """
    return fake_PF + spread(mix_E.unsqueeze(1), segments) * (real_PF - fake_PF)


def gradient_penalty(
    slope_PF: Tensor, segments: Segments, present_E: Tensor, *, one_sided: bool = False, plain_norm: bool = False
) -> GradientPenalty:
    """Gradient penalty Σ (‖∇D‖ - 1)²: arXiv:1704.00028, equation 3. ``slope_PF``: derivative of the events' scores.

    ``one_sided`` penalises only norms above 1: arXiv:1709.08894.

    The norm is per event, and dual to the distance √(|Δ₁|² + Σᵢ |Δᵢ|² / N) of two events, i = 2 … N, where muon 1 is
    the leading one, the last of its event: √(|g₁|² + N Σᵢ |gᵢ|²). A slope then has the same meaning for 2 muons and for
    2000, and the critic may follow the leading muon as steeply as the mean of all others. ``plain_norm``: √(Σ |g|²).
    """
    square_P = slope_PF.square().sum(1)
    if not plain_norm:
        last_E = segments.starts_E + segments.counts_E - 1
        last_P, counts_P = torch.stack([last_E, segments.counts_E]).index_select(1, segments.event_P)
        is_last_P = torch.arange(len(square_P), device=square_P.device) == last_P
        square_P = square_P * torch.where(is_last_P, 1, counts_P)
    square_E = segment_sum(square_P, segments)
    norm_E = (square_E + NORM_FLOOR).sqrt()
    excess_E = (norm_E - 1).clamp_min(0) if one_sided else norm_E - 1
    return GradientPenalty((excess_E.square() * present_E).sum(), (norm_E.detach() * present_E).sum())
