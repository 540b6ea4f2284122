"""Operators of a dense layer, beside its matrix product: `torch.ops.icestream.activate`, `pull` and those of their
backward passes, in torch's own operations on every device.

Shape suffixes: R rows, D columns. Rows may be bfloat16 with parameters in float32. See registration.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from workloads.base.kernels import layers_torch as kernels
from workloads.base.kernels.registration import register

_LAYER = "Tensor output_RD, Tensor? linear_RD, Tensor? mean_R1, Tensor? inverse_R1, Tensor? scale_D"


def _like_activate(linear_RD: Tensor, bias_D: Tensor | None, scale_D: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    rows = (linear_RD.shape[0], 1) if scale_D is not None else (0,)
    statistics = kernels.statistics_of(linear_RD)
    return linear_RD.new_empty(linear_RD.shape), statistics.new_empty(rows), statistics.new_empty(rows)


def _like_pull(gradient_RD: Tensor, *_: Any) -> Tensor:
    return gradient_RD.new_empty(gradient_RD.shape)


def _like_pull_with_sums(gradient_RD: Tensor, *layer: Any) -> tuple[Tensor, ...]:
    columns, statistics = gradient_RD.shape[1], kernels.statistics_of(gradient_RD)
    of_norm = columns if layer[4] is not None else 0
    sums = (statistics.new_empty(size) for size in (columns, of_norm, of_norm))
    return gradient_RD.new_empty(gradient_RD.shape), *sums


def _like_pull_backward(s_RD: Tensor, gradient_RD: Tensor, *layer: Any) -> tuple[Tensor, ...]:
    linear_RD, scale_D = layer[1], layer[4]
    statistics = kernels.statistics_of(gradient_RD)
    if scale_D is None:
        return gradient_RD.new_empty(gradient_RD.shape), statistics.new_empty(0), statistics.new_empty(0)
    to_gradient_RD, to_row_RD = (one.new_empty(one.shape) for one in (gradient_RD, linear_RD))
    return to_gradient_RD, to_row_RD, statistics.new_empty(scale_D.shape)


def _activate_backward(
    gradient_RD: Tensor, arguments: Sequence[Any], results: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    linear_RD, _, scale_D, _, _, leak = arguments
    layer = (linear_RD if scale_D is not None else None, *results[1:], scale_D, leak)
    if not any(needed[1:4]):
        return [PULL(gradient_RD, results[0], *layer)]
    to_row_RD, to_bias_D, to_scale_D, to_shift_D = PULL_WITH_SUMS(gradient_RD, results[0], *layer)
    return to_row_RD, to_bias_D if needed[1] else None, *((to_scale_D, to_shift_D) if needed[2] else ())


def _pull_backward(
    s_RD: Tensor, arguments: Sequence[Any], results: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    *layer, leak = arguments
    to_gradient_RD, to_row_RD, to_scale_D = PULL_BACKWARD(s_RD, *layer, results[0], leak)
    if arguments[5] is None:
        return [to_gradient_RD]
    return to_gradient_RD, None, to_row_RD, None, None, to_scale_D


ACTIVATE = register(
    "activate(Tensor linear_RD, Tensor? bias_D, Tensor? scale_D, Tensor? shift_D, float epsilon, float leak)"
    " -> (Tensor, Tensor, Tensor)",
    *(kernels, _like_activate),
    backward=_activate_backward,
)
PULL = register(
    f"pull(Tensor gradient_RD, {_LAYER}, float leak) -> Tensor",
    *(kernels, _like_pull),
    backward=_pull_backward,
)
PULL_WITH_SUMS = register(
    f"pull_with_sums(Tensor gradient_RD, {_LAYER}, float leak) -> (Tensor, Tensor, Tensor, Tensor)",
    *(kernels, _like_pull_with_sums),
)
PULL_BACKWARD = register(
    f"pull_backward(Tensor s_RD, Tensor gradient_RD, {_LAYER}, Tensor r_RD, float leak) -> (Tensor, Tensor, Tensor)",
    *(kernels, _like_pull_backward),
)
