"""Operators of losses by event, in torch's own operations. Shape suffixes: E events, P particles, F features, M sets of
generated rows, R rows, S columns of a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workloads.base.kernels import torch_kernels
from workloads.base.kernels.layers_torch import wide

NORM_FLOOR = 1e-12
"""Keeps the slope of the square root finite where the gradient is 0; changes a norm of 1 by 5e-13."""
DISTANCE_FLOOR = 1e-12
"""Keeps the slope of a distance finite at 0; features are standardised, so it is far below any relevant distance."""


def gradient_penalty(
    slope_PF: Tensor,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    present_E: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ (‖∇D‖ - 1)² and Σ ‖∇D‖ over the events that are present, (); squared norm of each event, (E,).

    The norm is √(|g₁|² + N Σᵢ |gᵢ|²) with 1 the last particle of N and i all others.
    """
    square_P = slope_PF.square().sum(1) * _weight_P(event_P, counts_E, starts_E, particles_P)
    square_E1 = torch_kernels.pool(square_P.unsqueeze(1), None, event_P, counts_E, starts_E, particles_P, "sum")
    square_E = square_E1.squeeze(1)
    norm_E = (square_E + NORM_FLOOR).sqrt()
    return ((norm_E - 1).square() * present_E).sum(), (norm_E * present_E).sum(), square_E


def gradient_penalty_backward(
    gradient: Tensor,
    slope_PF: Tensor,
    square_E: Tensor,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    present_E: Tensor,
) -> Tensor:
    """Gradient of the slopes by the penalty. () -> (P, F)."""
    norm_E = (square_E + NORM_FLOOR).sqrt()
    factor_P = (gradient * 2 * (norm_E - 1) / norm_E * present_E).index_select(0, event_P)
    return slope_PF * (factor_P * _weight_P(event_P, counts_E, starts_E, particles_P)).unsqueeze(1)


def row_scores(generated_MRS: Tensor, real_RS: Tensor) -> tuple[Tensor, Tensor]:
    """Energy score of each row, and its slopes by the generated ones. (M, R, S), (R, S) -> (R,), (M, S, R).

    All pairs at once: few operators.
    """
    times = len(generated_MRS)
    generated_MSR = wide(generated_MRS).transpose(1, 2).contiguous()
    # Each pair twice, and each value with itself, at the distance of the floor, but for a weight of 0.
    among_MMSR = generated_MSR.unsqueeze(1) - generated_MSR
    to_real_MSR = generated_MSR - wide(real_RS).t()
    among_MMR, to_real_MR = _length(among_MMSR), _length(to_real_MSR)
    slope_MSR = to_real_MSR / (times * to_real_MR).unsqueeze(1)
    slope_MSR -= (among_MMSR / among_MMR.unsqueeze(2)).sum(1) / (times * (times - 1))
    among_R = among_MMR.sum((0, 1)) - times * math.sqrt(DISTANCE_FLOOR)
    return to_real_MR.mean(0) - among_R / (2 * times * (times - 1)), slope_MSR


def _weight_P(event_P: Tensor, counts_E: Tensor, starts_E: Tensor, particles_P: Tensor) -> Tensor:
    """Weight of each particle's squared slope: N of its event, 1 for the last of an event. -> (P,) int64."""
    last_E = starts_E + counts_E - 1
    last_P, counts_P = torch.stack([last_E, counts_E]).index_select(1, event_P)
    return torch.where(particles_P == last_P, 1, counts_P)


def _length(apart_S_R: Tensor) -> Tensor:
    """Length of the vectors of the last dimension but one. (…, S, R) -> (…, R)."""
    square: Tensor = apart_S_R.square().sum(-2)
    return square.add_(DISTANCE_FLOOR).sqrt_()
