"""Operators of a critic's scores and losses: `torch.ops.icestream.score`, `score_slope`, `bounded_loss`, and their
backward passes.

One kernel each on CUDA; those that sum over rows or values are two. Shape suffixes: R rows, D columns, N values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from workloads.base.kernels import scores_torch as kernels
from workloads.base.kernels.layers_torch import statistics_of
from workloads.base.kernels.registration import register

_LAUNCHES = "workloads.base.kernels.scores_launch"
_ROWS = "Tensor rows_RD, Tensor projected_RD, Tensor weight_1D"


def _like_score(rows_RD: Tensor, *_: Any) -> Tensor:
    return statistics_of(rows_RD).new_empty(rows_RD.shape[0])


def _like_score_slope(rows_RD: Tensor, *_: Any) -> Tensor:
    return statistics_of(rows_RD).new_empty(rows_RD.shape)


def _like_score_backward(
    gradient: Tensor, rows_RD: Tensor, projected_RD: Tensor, weight_1D: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    same = (one.new_empty(one.shape) for one in (rows_RD, projected_RD, weight_1D))
    return *same, statistics_of(rows_RD).new_empty(1)


SCORE = register(
    f"score({_ROWS}, Tensor bias_1) -> Tensor",
    *(kernels, _LAUNCHES, _like_score),
    plain=kernels.score,
    backward=lambda gradient_R, arguments, *_: SCORE_BACKWARD(gradient_R, *arguments[:3]),
)
SCORE_BACKWARD: Any = register(
    f"score_backward(Tensor gradient_R, {_ROWS}) -> (Tensor, Tensor, Tensor, Tensor)",
    *(kernels, _LAUNCHES, _like_score_backward),
)
SCORE_SLOPE = register(
    f"score_slope({_ROWS}, Tensor bias_1, float limit) -> Tensor",
    *(kernels, _LAUNCHES, _like_score_slope),
    plain=kernels.score_slope,
    backward=lambda gradient_RD, arguments, *_: SCORE_SLOPE_BACKWARD(gradient_RD, *arguments),
)
SCORE_SLOPE_BACKWARD: Any = register(
    f"score_slope_backward(Tensor gradient_RD, {_ROWS}, Tensor bias_1, float limit)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    *(kernels, _LAUNCHES, _like_score_backward),
)
BOUNDED_LOSS = register(
    "bounded_loss(Tensor scores_N, Tensor signs_N, float limit) -> (Tensor, Tensor)",
    *(kernels, _LAUNCHES, lambda scores_N, *_: (scores_N.new_empty(()), scores_N.new_empty(2))),
    plain=kernels.bounded_loss,
    backward=lambda gradient, arguments, *_: [BOUNDED_LOSS_BACKWARD(gradient, *arguments)],
)
BOUNDED_LOSS_BACKWARD: Any = register(
    "bounded_loss_backward(Tensor gradient, Tensor scores_N, Tensor signs_N, float limit) -> Tensor",
    *(kernels, _LAUNCHES, lambda gradient, scores_N, *_: scores_N.new_empty(scores_N.shape)),
)


@register_flop_formula([torch.ops.icestream.score, torch.ops.icestream.score_slope])
def _flops_of_score(rows_shape: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """The product of the rows with the weight."""
    return 2 * math.prod(rows_shape)


@register_flop_formula([torch.ops.icestream.score_backward, torch.ops.icestream.score_slope_backward])
def _flops_of_score_backward(_: Any, rows_shape: Sequence[int], *__: Any, out_shape: Any = None, **___: Any) -> int:
    """The products for the gradients of rows and weight."""
    return 4 * math.prod(rows_shape)
