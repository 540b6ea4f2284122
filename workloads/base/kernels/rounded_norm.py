"""Layer normalisation and leaky ReLU of rows in bfloat16, and their pullback; statistics and sums in float32.

`torch.ops.icestream.rounded_norm` and `rounded_pullback`, registered with torch for the reasons in product.py.
With x̂ the normalised row, σ its spread and n its length, the pullback is r = J(γ u), where J v = (v - mean(v) -
x̂ mean(x̂ v)) / σ is symmetric: the gradient of ⟨s, r⟩ by γ u is J s, and that by the row
-((s·r) x̂ + (x̂·s) r + (x̂·γu) J s) / (n σ).

Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.base.kernels.product import LIBRARY

LIBRARY.define(
    "rounded_norm(Tensor row_RD, Tensor scale_D, Tensor shift_D, float epsilon, float leak) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "rounded_pullback(Tensor gradient_RD, Tensor output_RD, Tensor row_RD, Tensor mean_R1, Tensor inverse_R1,"
    " Tensor scale_D, float leak) -> Tensor"
)
ROUNDED_NORM = torch.ops.icestream.rounded_norm.default
"""Output in bfloat16, and the rows' means and inverse spreads in float32. (R, D) -> (R, D), (R, 1), (R, 1)."""
ROUNDED_PULLBACK = torch.ops.icestream.rounded_pullback.default
"""Gradient with respect to the output -> that with respect to the rows, in bfloat16. (R, D) -> (R, D)."""


def _norm(row_RD: Tensor, scale_D: Tensor, shift_D: Tensor, epsilon: float, leak: float) -> tuple[Tensor, ...]:
    normal_RD, mean_R1, inverse_R1 = torch.native_layer_norm(
        row_RD.float(), [row_RD.shape[1]], scale_D, shift_D, epsilon
    )
    return F.leaky_relu(normal_RD, leak, inplace=True).to(torch.bfloat16), mean_R1, inverse_R1


def _through_leak(gradient_RD: Tensor, output_RD: Tensor, leak: float) -> Tensor:
    """Pullback of the leaky ReLU, in float32."""
    pulled_RD: Tensor = torch.ops.aten.leaky_relu_backward(gradient_RD.float(), output_RD.float(), leak, True)
    return pulled_RD


def _through_norm(
    of_normal_RD: Tensor,
    row_RD: Tensor,
    mean_R1: Tensor,
    inverse_R1: Tensor,
    scale_D: Tensor,
    of_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    # Of rows in bfloat16, torch on the CPU sums gradients of the weights in bfloat16: 5 % off after 4,000 rows.
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        *(of_normal_RD, row_RD.float(), [row_RD.shape[1]], mean_R1, inverse_R1, scale_D, scale_D),
        [True, of_weights, of_weights],
    )
    return found


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, row_RD: Tensor, scale_D: Tensor, shift_D: Tensor, epsilon: float, leak: float
    ) -> tuple[Tensor, ...]:
        output_RD, mean_R1, inverse_R1 = _norm(row_RD, scale_D, shift_D, epsilon, leak)
        ctx.save_for_backward(row_RD, output_RD, mean_R1, inverse_R1, scale_D)
        ctx.leak = leak
        ctx.mark_non_differentiable(mean_R1, inverse_R1)
        return output_RD, mean_R1, inverse_R1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        row_RD, output_RD, mean_R1, inverse_R1, scale_D = ctx.saved_tensors
        of_normal_RD = _through_leak(gradients[0], output_RD, ctx.leak)
        to_row, to_scale, to_shift = _through_norm(
            of_normal_RD, row_RD, mean_R1, inverse_R1, scale_D, ctx.needs_input_grad[1]
        )
        return to_row.to(torch.bfloat16), to_scale, to_shift, None, None


class _Pullback(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gradient_RD: Tensor,
        output_RD: Tensor,
        row_RD: Tensor,
        mean_R1: Tensor,
        inverse_R1: Tensor,
        scale_D: Tensor,
        leak: float,
    ) -> Tensor:
        r_RD = _pulled(gradient_RD, output_RD, row_RD, mean_R1, inverse_R1, scale_D, leak)
        ctx.save_for_backward(gradient_RD, r_RD, output_RD, row_RD, mean_R1, inverse_R1, scale_D)
        ctx.leak = leak
        return r_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient_RD, r_RD, output_RD, row_RD, mean_R1, inverse_R1, scale_D = ctx.saved_tensors
        u_RD = _through_leak(gradient_RD, output_RD, ctx.leak)
        s_RD, centred_RD = gradients[0].float(), row_RD.float() - mean_R1
        js_RD = torch.ops.aten.native_layer_norm_backward(
            s_RD, row_RD.float(), [row_RD.shape[1]], mean_R1, inverse_R1, None, None, [True, False, False]
        )[0]
        products_RD = u_RD * js_RD
        scale_R1 = inverse_R1 * inverse_R1 / -row_RD.shape[1]
        of_row_R1 = (products_RD @ scale_D).unsqueeze(1) * scale_R1
        of_r_R1 = (centred_RD * s_RD).sum(1, keepdim=True) * scale_R1
        of_js_R1 = ((centred_RD * u_RD) @ scale_D).unsqueeze(1) * scale_R1
        to_row_RD = of_row_R1 * centred_RD + of_r_R1 * r_RD + of_js_R1 * js_RD
        return (
            _through_leak(js_RD * scale_D, output_RD, ctx.leak).to(torch.bfloat16),
            *(None, to_row_RD.to(torch.bfloat16), None, None, products_RD.sum(0), None),
        )


def _pulled(
    gradient_RD: Tensor,
    output_RD: Tensor,
    row_RD: Tensor,
    mean_R1: Tensor,
    inverse_R1: Tensor,
    scale_D: Tensor,
    leak: float,
) -> Tensor:
    """Gradient with respect to the rows."""
    u_RD = _through_leak(gradient_RD, output_RD, leak)
    r_RD = _through_norm(u_RD, row_RD, mean_R1, inverse_R1, scale_D, of_weights=False)[0]
    return r_RD.to(torch.bfloat16)


def _differentiable_norm(row_RD: Tensor, *others: Any) -> tuple[Tensor, ...]:
    is_trained = torch.is_grad_enabled() and (row_RD.requires_grad or others[0].requires_grad)
    found: tuple[Tensor, ...] = _Norm.apply(row_RD, *others) if is_trained else _norm(row_RD, *others)
    return found


def _differentiable_pullback(*arguments: Any) -> Tensor:
    is_trained = torch.is_grad_enabled() and any(one.requires_grad for one in arguments[:-1])
    row_RD: Tensor = _Pullback.apply(*arguments) if is_trained else _pulled(*arguments)
    return row_RD


def _like_norm(row_RD: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    one_R1 = row_RD.new_empty(row_RD.shape[0], 1, dtype=torch.float32)
    return torch.empty_like(row_RD), one_R1, torch.empty_like(one_R1)


LIBRARY.impl("rounded_norm", _differentiable_norm, "Autograd")
LIBRARY.impl("rounded_norm", _norm, "CompositeExplicitAutograd")
LIBRARY.impl("rounded_pullback", _differentiable_pullback, "Autograd")
LIBRARY.impl("rounded_pullback", _pulled, "CompositeExplicitAutograd")
torch.library.register_fake("icestream::rounded_norm", _like_norm, lib=LIBRARY)
torch.library.register_fake(
    "icestream::rounded_pullback", lambda gradient_RD, *others: torch.empty_like(others[1]), lib=LIBRARY
)
