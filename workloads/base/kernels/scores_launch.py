"""Launches of the Triton kernels of a critic's scores and losses. Imports Triton. Shape suffixes as in scores_torch."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from workloads.base.kernels import scores_torch
from workloads.base.kernels import scores_triton as kernels
from workloads.base.kernels.launch import accumulator, on_device_of
from workloads.base.kernels.layers_launch import MOST_COLUMNS, blocks, share
from workloads.base.kernels.layers_torch import statistics_of

_VALUES = 1024


def score(rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor) -> Tensor:
    """See scores_torch."""
    if rows_RD.shape[1] > MOST_COLUMNS:
        return scores_torch.score(rows_RD, projected_RD, weight_1D, bias_1)
    result_R = statistics_of(rows_RD).new_empty(rows_RD.shape[0])
    _scored(result_R, rows_RD, projected_RD, weight_1D, bias_1, 0.0, is_slope=False)
    return result_R


def score_slope(rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor, limit: float) -> Tensor:
    """See scores_torch."""
    if rows_RD.shape[1] > MOST_COLUMNS:
        return scores_torch.score_slope(rows_RD, projected_RD, weight_1D, bias_1, limit)
    result_RD = statistics_of(rows_RD).new_empty(rows_RD.shape)
    _scored(result_RD, rows_RD, projected_RD, weight_1D, bias_1, limit, is_slope=True)
    return result_RD


def score_backward(
    gradient_R: Tensor, rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See scores_torch."""
    if rows_RD.shape[1] > MOST_COLUMNS:
        return scores_torch.score_backward(gradient_R, rows_RD, projected_RD, weight_1D)
    return _pulled(gradient_R, rows_RD, projected_RD, weight_1D, weight_1D, 0.0, is_slope=False)


def score_slope_backward(
    gradient_RD: Tensor, rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, bias_1: Tensor, limit: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See scores_torch."""
    if rows_RD.shape[1] > MOST_COLUMNS:
        return scores_torch.score_slope_backward(gradient_RD, rows_RD, projected_RD, weight_1D, bias_1, limit)
    return _pulled(gradient_RD, rows_RD, projected_RD, weight_1D, bias_1, limit, is_slope=True)


def bounded_loss(scores_N: Tensor, signs_N: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """See scores_torch."""
    scores_N, num_values = scores_N.contiguous(), scores_N.shape[0]
    programs = triton.cdiv(num_values, _VALUES)
    parts_T3 = statistics_of(scores_N).new_empty(programs, 3)
    if num_values:
        with on_device_of(scores_N):
            kernels.bounded_loss_values[(programs,)](
                scores_N, signs_N.contiguous(), parts_T3, num_values,
                LIMIT=limit, NEAR=scores_torch.SATURATED, ACC=accumulator(scores_N), VALUES=_VALUES,
            )  # fmt: skip
    sums_3 = parts_T3.sum(0)
    return sums_3[0], sums_3[1:]


def bounded_loss_backward(gradient: Tensor, scores_N: Tensor, signs_N: Tensor, limit: float) -> Tensor:
    """See scores_torch."""
    scores_N, num_values = scores_N.contiguous(), scores_N.shape[0]
    slopes_N = torch.empty_like(scores_N)
    if num_values:
        with on_device_of(scores_N):
            kernels.bounded_loss_slopes[(triton.cdiv(num_values, _VALUES),)](
                gradient, scores_N, signs_N.contiguous(), slopes_N, num_values,
                LIMIT=limit, ACC=accumulator(scores_N), VALUES=_VALUES,
            )  # fmt: skip
    return slopes_N


def _scored(
    results: Tensor,
    rows_RD: Tensor,
    projected_RD: Tensor,
    weight_1D: Tensor,
    bias_1: Tensor,
    limit: float,
    *,
    is_slope: bool,
) -> None:
    """Write scores or slopes into ``results``."""
    num_rows, columns = rows_RD.shape
    if rows_RD.numel():
        block = blocks(rows_RD)
        with on_device_of(rows_RD):
            kernels.score_rows[(triton.cdiv(num_rows, block["ROWS"]),)](
                rows_RD.contiguous(), projected_RD.contiguous(), weight_1D.contiguous(), bias_1, results,
                num_rows, columns, LIMIT=limit, SLOPE=is_slope, ROOT=math.sqrt(columns), **block,
            )  # fmt: skip


def _pulled(
    gradient: Tensor,
    rows_RD: Tensor,
    projected_RD: Tensor,
    weight_1D: Tensor,
    bias_1: Tensor,
    limit: float,
    *,
    is_slope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rows, projected rows, weight and bias."""
    rows_RD, projected_RD = rows_RD.contiguous(), projected_RD.contiguous()
    to_rows_RD, to_projected_RD = torch.empty_like(rows_RD), torch.empty_like(projected_RD)
    num_rows, columns = rows_RD.shape
    block = blocks(rows_RD)
    programs, rows_each = share(num_rows, block["ROWS"])
    parts_TX = statistics_of(rows_RD).new_empty(programs, columns + 1)
    if rows_RD.numel():
        with on_device_of(rows_RD):
            kernels.score_backward_rows[(programs,)](
                gradient.contiguous(), rows_RD, projected_RD, weight_1D.contiguous(), bias_1,
                to_rows_RD, to_projected_RD, parts_TX, num_rows, rows_each, columns,
                LIMIT=limit, SLOPE=is_slope, ROOT=math.sqrt(columns), **block,
            )  # fmt: skip
    to_weight_1D, to_bias_1 = parts_TX.sum(0, keepdim=True).split([columns, 1], 1)
    return to_rows_RD, to_projected_RD, to_weight_1D, to_bias_1.squeeze(0)
