"""Activation of a dense layer and its pullback, in torch's own operations on every device. Both can be differentiated
once.

Rows may be of less than 32 bits: statistics, sums and the results in between are in float32 then, as parameters are.
Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


class Normal(NamedTuple):
    """Normalisation of a layer's rows."""

    rows_RD: Tensor
    """Rows before it."""
    mean_R1: Tensor
    inverse_R1: Tensor
    """Inverse of the rows' spreads."""
    scale_D: Tensor


def activate(linear_RD: Tensor, bias_D: Tensor | None, norm: torch.nn.LayerNorm, leak: float) -> tuple[Tensor, Normal]:
    """Rows after normalisation and a leaky ReLU, and what `pull` needs of the former. (R, D) -> (R, D).

    ``bias_D`` is in the rows already, and gets its gradient here: the columns are summed for all parameters at once.
    """
    scale_D, shift_D, epsilon = norm.weight, norm.bias, norm.eps
    if torch.compiler.is_compiling():  # torch's compiler doesn't follow these functions, but fuses its own operations
        rows_RD = linear_RD if bias_D is None else wide(linear_RD) + (bias_D - bias_D.detach())
        output_RD, mean_R1, inverse_R1 = _activated(rows_RD, scale_D, shift_D, epsilon, leak, linear_RD.dtype)
    else:
        output_RD, mean_R1, inverse_R1 = _Activate.apply(linear_RD, bias_D, scale_D, shift_D, epsilon, leak)
    return output_RD, Normal(linear_RD, mean_R1, inverse_R1, scale_D)


def pull(gradient_RD: Tensor, output_RD: Tensor, normal: Normal, leak: float) -> Tensor:
    """Pullback of a gradient through `activate`: J(γ u) with u = gradient × slope of the ReLU. (R, D) -> (R, D).

    With x̂ the normalised row, σ its spread: J v = (v - mean(v) - x̂ mean(x̂ v)) / σ, which is symmetric.
    """
    if torch.compiler.is_compiling():
        return _pulled(gradient_RD, output_RD, normal, leak)
    pulled_RD: Tensor = _Pull.apply(gradient_RD, output_RD, leak, *normal)
    return pulled_RD


def wide(values: Tensor) -> Tensor:
    """Values as they are computed with: in float32 at least."""
    return values if values.dtype == torch.float64 else values.float()


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        linear_RD: Tensor,
        bias_D: Tensor | None,
        scale_D: Tensor,
        shift_D: Tensor,
        epsilon: float,
        leak: float,
    ) -> tuple[Tensor, ...]:
        results = output_RD, *statistics = _activated(linear_RD, scale_D, shift_D, epsilon, leak, linear_RD.dtype)
        ctx.save_for_backward(output_RD, linear_RD, *statistics, scale_D)
        ctx.leak = leak
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*statistics)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        output_RD, *kept = ctx.saved_tensors
        normal = Normal(*kept)
        _, to_bias, to_norm, *_ = ctx.needs_input_grad
        if not (to_bias or to_norm):
            return _pulled(gradients[0], output_RD, normal, ctx.leak), *5 * [None]
        u_RD = _through(gradients[0], output_RD, ctx.leak)
        rows_RD, mean_R1, inverse_R1, scale_D = normal
        pulled_RD, of_scale_D, of_shift_D = _aten.native_layer_norm_backward(
            *(u_RD, wide(rows_RD), list(scale_D.shape), mean_R1, inverse_R1, scale_D, scale_D, [True, True, True])
        )
        of_bias_D = pulled_RD.sum(0) if to_bias else None
        return pulled_RD.to(gradients[0].dtype), of_bias_D, of_scale_D, of_shift_D, None, None


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient_RD: Tensor, output_RD: Tensor, leak: float, *normal: Tensor) -> Tensor:
        pulled_RD = _pulled(gradient_RD, output_RD, Normal(*normal), leak)
        ctx.save_for_backward(gradient_RD, output_RD, pulled_RD, *normal)
        ctx.leak = leak
        return pulled_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient_RD, output_RD, pulled_RD, *normal = ctx.saved_tensors
        s_RD, r_RD, leak = wide(gradients[0]), wide(pulled_RD), ctx.leak
        to_gradient_RD, to_row_RD, to_scale_D = _pull_backward(
            s_RD, gradient_RD, output_RD, Normal(*normal), r_RD, leak
        )
        return to_gradient_RD, None, None, to_row_RD, None, None, to_scale_D


def _activated(
    linear_RD: Tensor, scale_D: Tensor, shift_D: Tensor, epsilon: float, leak: float, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Rows of ``dtype``, means and inverse of the spreads before."""
    rows_RD = wide(linear_RD.contiguous())
    normal_RD, mean_R1, inverse_R1 = torch.native_layer_norm(rows_RD, scale_D.shape, scale_D, shift_D, epsilon)
    return F.leaky_relu(normal_RD, leak, inplace=True).to(dtype), mean_R1, inverse_R1


def _pulled(gradient_RD: Tensor, output_RD: Tensor, normal: Normal, leak: float) -> Tensor:
    """See `pull`."""
    u_RD = _through(gradient_RD, output_RD, leak)
    return _normal_pull(u_RD, normal.rows_RD, normal, normal.scale_D).to(gradient_RD.dtype)


def _pull_backward(
    s_RD: Tensor, gradient_RD: Tensor, output_RD: Tensor, normal: Normal, r_RD: Tensor, leak: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ⟨s, r⟩, r = `pull`, with respect to gradient, rows and scale. -> (R, D), (R, D), (D,).

    That with respect to γ u is J s, that with respect to the row -((s·r) x̂ + (x̂·s) r + (x̂·γu) J s) / (n σ), n its
    length.
    """
    row_RD, inverse_R1, scale_D = wide(normal.rows_RD), normal.inverse_R1, normal.scale_D
    u_RD = _through(gradient_RD, output_RD, leak)
    js_RD = _normal_pull(s_RD, row_RD, normal, None)
    # Each pass over the rows is expensive: row products are shared, and summed by matrix-vector products.
    centred_RD = row_RD - normal.mean_R1
    products_RD = u_RD * js_RD
    to_scale_D = products_RD.sum(0)
    factor_R = (inverse_R1 * inverse_R1 / -row_RD.shape[1]).squeeze(1)
    of_row_R = (products_RD @ scale_D) * factor_R  # s·r = J(γ u)·s = γ u·J s
    of_r_R = torch.mul(centred_RD, s_RD, out=products_RD).sum(1) * factor_R
    of_js_R = (torch.mul(centred_RD, u_RD, out=products_RD) @ scale_D) * factor_R
    to_row_RD = centred_RD.mul_(of_row_R.unsqueeze(1))
    to_row_RD.addcmul_(r_RD, of_r_R.unsqueeze(1)).addcmul_(js_RD, of_js_R.unsqueeze(1))
    to_gradient_RD = _through(js_RD.mul_(scale_D), output_RD, leak)
    return to_gradient_RD.to(gradient_RD.dtype), to_row_RD.to(normal.rows_RD.dtype), to_scale_D


def _through(gradient_RD: Tensor, output_RD: Tensor, leak: float) -> Tensor:
    """Pullback of the leaky ReLU, by its output."""
    pulled_RD: Tensor = _aten.leaky_relu_backward(wide(gradient_RD).contiguous(), wide(output_RD), leak, True)
    return pulled_RD


def _normal_pull(u_RD: Tensor, rows_RD: Tensor, normal: Normal, scale_D: Tensor | None) -> Tensor:
    """Vector J(γ u), (R, D); γ = 1 without a scale."""
    _, mean_R1, inverse_R1, _ = normal
    pulled_RD: Tensor = _aten.native_layer_norm_backward(
        *(u_RD.contiguous(), wide(rows_RD), [rows_RD.shape[1]], mean_R1, inverse_R1, scale_D, None),
        [True, False, False],
    )[0]
    return pulled_RD
