"""Losses of the muon WGAN. Each is a sum over events, so that those of microbatches add up to their batch.

The caller divides by the events of the whole batch. ``present_E`` is (E,), 1.0 for an event with muons and
0.0 for an empty one, which critic and generator ignore. (An index would need a host sync.)
Shape suffixes: E events, P particles, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.kernels.event_losses import GRADIENT_PENALTY
from workloads.base.kernels.scores import BOUNDED_LOSS
from workloads.base.segments import Segments, spread, tensors_of


class ScoreLoss(NamedTuple):
    """Loss by the scores, and sums that describe them."""

    loss: Tensor
    """()."""
    gap_and_near_2: Tensor
    """(2,): D(real) - D(fake) before saturation; the share of an event's two scores near their bound."""


def critic_loss(scores_2E: Tensor, signs_2E: Tensor, limit: float) -> ScoreLoss:
    """Critic loss Σ D(fake) - D(real), arXiv:1701.07875 equation 2 with the sign to minimise. (2 E,), (2 E,).

    ``scores_2E``: unbounded scores of the real events, then of the generated ones; D is L·tanh(score / L), L =
    ``limit``, or the score itself for 0. ``signs_2E``: see `signs`.
    """
    return ScoreLoss(*BOUNDED_LOSS(scores_2E, signs_2E, limit))


def signs(present_E: Tensor) -> Tensor:
    """Sign of each score in the critic loss: -1 for real events, then 1 for generated ones, 0 for empty. (2 E,)."""
    return torch.cat([-present_E, present_E])


def generator_loss(fake_scores_E: Tensor, signs_2E: Tensor, limit: float) -> Tensor:
    """Generator loss -Σ D(fake), likewise. (E,), (2 E,) -> ()."""
    # A generated event counts here as a real one does for the critic.
    loss: Tensor = BOUNDED_LOSS(fake_scores_E, signs_2E[: len(fake_scores_E)], limit)[0]
    return loss


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


def gradient_penalty(
    slope_PF: Tensor, segments: Segments, present_E: Tensor, *, one_sided: bool = False, plain_norm: bool = False
) -> GradientPenalty:
    """Gradient penalty Σ (‖∇D‖ - 1)²: arXiv:1704.00028, equation 3. ``slope_PF``: derivative of the events' scores.

    ``one_sided`` penalises only norms above 1: arXiv:1709.08894.

    The norm is per event, and dual to the distance √(|Δ₁|² + Σᵢ |Δᵢ|² / N) of two events, i = 2 … N, where muon 1 is
    the leading one, the last of its event: √(|g₁|² + N Σᵢ |gᵢ|²). A slope then has the same meaning for 2 muons and for
    2000, and the critic may follow the leading muon as steeply as the mean of all others. ``plain_norm``: √(Σ |g|²).
    """
    penalty, norm, _ = GRADIENT_PENALTY(slope_PF, *tensors_of(segments), present_E, one_sided, plain_norm)
    return GradientPenalty(penalty, norm)
