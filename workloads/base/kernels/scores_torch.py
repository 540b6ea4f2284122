"""Operators of a critic's scores and losses, in torch's own operations.

Results of a score are in float32 at least, whatever the rows are in. Shape suffixes: R rows, D columns, N values.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.kernels.layers_torch import wide

SATURATED = 0.9
"""Part of the limit above which a bounded score is near it: there the gradient is less than a fifth."""


def score(rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor) -> Tensor:
    """Score of each row: row · (weight + projected / √D) + bias. (R, D), (R, D) -> (R,)."""
    rows_RD, projected_RD = wide(rows_RD), wide(projected_RD)
    projected_R = (rows_RD * projected_RD).sum(1) / math.sqrt(rows_RD.shape[1])
    return F.linear(rows_RD, weight_1D, bias_1).squeeze(1) + projected_R


def score_backward(
    gradient_R: Tensor, rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rows, projected rows, weight and bias. (R,) -> (R, D), (R, D), (1, D), (1,)."""
    wide_RD, gradient_R1 = wide(rows_RD), gradient_R.unsqueeze(1)
    scaled_R1 = gradient_R1 / math.sqrt(rows_RD.shape[1])
    to_rows_RD = gradient_R1 * weight_1D + scaled_R1 * wide(projected_RD)
    to_projected_RD = scaled_R1 * wide_RD
    to_weight_1D = gradient_R1.t() @ wide_RD
    return to_rows_RD.to(rows_RD.dtype), to_projected_RD.to(projected_RD.dtype), to_weight_1D, gradient_R.sum(0, True)


def score_slope(rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor, limit: float) -> Tensor:
    """Slope of L·tanh(score / L) by the row, L = ``limit``; of the score itself for 0. (R, D), (R, D) -> (R, D)."""
    slope_RD = weight_1D + wide(projected_RD) / math.sqrt(rows_RD.shape[1])
    if limit == 0:
        return slope_RD
    return slope_RD * (1 - torch.tanh(score(rows_RD, projected_RD, weight_1D, bias_1).unsqueeze(1) / limit).square())


def score_slope_backward(
    gradient_RD: Tensor, rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor, limit: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rows, projected rows, weight and bias, likewise. (R, D) -> (R, D), (R, D), (1, D), (1,)."""
    root = math.sqrt(rows_RD.shape[1])
    if limit == 0:
        to_projected_RD = (gradient_RD / root).to(projected_RD.dtype)
        return torch.zeros_like(rows_RD), to_projected_RD, gradient_RD.sum(0, True), torch.zeros_like(bias_1)
    wide_RD = wide(rows_RD)
    slope_RD = weight_1D + wide(projected_RD) / root
    tanh_R1 = torch.tanh(score(rows_RD, projected_RD, weight_1D, bias_1).unsqueeze(1) / limit)
    factor_R1 = 1 - tanh_R1.square()
    along_R1 = (gradient_RD * slope_RD).sum(1, True)
    of_score_R1 = along_R1 * (-2 / limit) * tanh_R1 * factor_R1
    to_slope_RD = gradient_RD * factor_R1 + of_score_R1 * wide_RD
    to_rows_RD = (of_score_R1 * slope_RD).to(rows_RD.dtype)
    return to_rows_RD, (to_slope_RD / root).to(projected_RD.dtype), to_slope_RD.sum(0, True), of_score_R1.sum(0)


def bounded_loss(scores_N: Tensor, signs_N: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Σ sign × bounded score, (); -Σ sign × score and ½ Σ |sign| of bounded scores near their limit, (2,).

    (N,), (N,): bounded is L·tanh(score / L), L = ``limit``; 0: unbounded, and never near.
    """
    bounded_N = limit * torch.tanh(scores_N / limit) if limit > 0 else scores_N
    near_N = (bounded_N.abs() > SATURATED * limit) & (limit > 0)
    described_2 = torch.stack([-(scores_N * signs_N).sum(), (near_N * signs_N.abs()).sum() / 2])
    return (bounded_N * signs_N).sum(), described_2


def bounded_loss_backward(gradient: Tensor, scores_N: Tensor, signs_N: Tensor, limit: float) -> Tensor:
    """Gradient of the scores. () -> (N,)."""
    gradient_N = gradient * signs_N
    if limit == 0:
        return gradient_N
    return gradient_N * (1 - torch.tanh(scores_N / limit).square())
