"""Losses of the muon WGAN. Each is a sum over events, so that microbatches add up to their batch.

The caller divides by the events of the whole batch. ``present_E`` is (E,), 1.0 for an event with muons and
0.0 for an empty one, which critic and generator do not see. (An index would too, but needs a host sync.)
Shape suffixes: E events, P particles, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from services.trainer.segments import Segments, segment_sum, sort_within_events
from services.trainer.wgan.model import CountMixture

# Keeps the slope of the square root finite where the gradient is 0; changes a norm of 1 by 5e-13.
NORM_FLOOR = 1e-12


def count_nll(mixture: CountMixture, counts_E: Tensor) -> Tensor:
    """-Σ ln p(N | c) in nats, a sum over events. (E, K), (E,) int64 -> ().

    Computed in float64: at N = 1e5, lgamma is 1e6, and its float32 rounding alone is 0.06 nats.
    """
    log_weights_EK, log_means_EK, log_shapes_EK = (values.double() for values in mixture)
    counts_E1 = counts_E.double().unsqueeze(1)
    shapes_EK = log_shapes_EK.exp()
    log_total_EK = torch.logaddexp(log_means_EK, log_shapes_EK)
    log_p_EK = (
        torch.lgamma(counts_E1 + shapes_EK)
        - torch.lgamma(shapes_EK)
        - torch.lgamma(counts_E1 + 1)
        + shapes_EK * (log_shapes_EK - log_total_EK)
        + counts_E1 * (log_means_EK - log_total_EK)
    )
    return -torch.logsumexp(log_weights_EK + log_p_EK, 1).sum().to(mixture.log_means_EK.dtype)


def critic_loss(real_scores_E: Tensor, fake_scores_E: Tensor, present_E: Tensor) -> Tensor:
    """Σ D(fake) - D(real), arXiv:1701.07875 equation 2 with the sign to minimise. 3 times (E,) -> ()."""
    return ((fake_scores_E - real_scores_E) * present_E).sum()


def generator_loss(fake_scores_E: Tensor, present_E: Tensor) -> Tensor:
    """-Σ D(fake). (E,), (E,) -> ()."""
    return -(fake_scores_E * present_E).sum()


class GradientPenalty(NamedTuple):
    """Both are sums over events, ()."""

    penalty: Tensor
    norm: Tensor


def gradient_penalty(
    score: Callable[[Tensor], Tensor],
    real_PF: Tensor,
    fake_PF: Tensor,
    segments: Segments,
    mix_E: Tensor,
    *,
    one_sided: bool = False,
) -> GradientPenalty:
    """Σ (|∇D| - 1)² between real and generated events: arXiv:1704.00028, equation 3.

    ``score`` maps features (P, F) to scores (E,). ``mix_E`` (E,), uniform in [0, 1], is the share of the real
    event. ``one_sided`` punishes only norms above 1: arXiv:1709.08894.

    A set has no order, so real and generated muons are paired by rank in the first feature, lg E: optimal
    transport in one dimension. The norm is per event, and dual to the root mean square distance between two
    events: √(N Σᵢ |gᵢ|²). So the critic's slope means the same for 2 muons and for 2000.
    """
    real_PF = real_PF[sort_within_events(real_PF[:, 0], segments)]
    fake_PF = fake_PF[sort_within_events(fake_PF[:, 0], segments)]
    mix_P1 = mix_E[segments.event_P].unsqueeze(1)
    between_PF = (mix_P1 * real_PF + (1 - mix_P1) * fake_PF).detach().requires_grad_(True)
    (gradient_PF,) = torch.autograd.grad(score(between_PF).sum(), between_PF, create_graph=True)
    square_E = segments.counts_E * segment_sum(gradient_PF.square().sum(1), segments)
    norm_E = (square_E + NORM_FLOOR).sqrt()
    excess_E = (norm_E - 1).clamp_min(0) if one_sided else norm_E - 1
    present_E = (segments.counts_E > 0).to(norm_E.dtype)
    return GradientPenalty((excess_E.square() * present_E).sum(), (norm_E.detach() * present_E).sum())
