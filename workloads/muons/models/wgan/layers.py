"""Layers with an explicit derivative with respect to their input.

The gradient penalty trains on the critic's slope. Autograd can differentiate its own backward pass, but slowly
(half of a step was the second derivative of layer normalisation), and compilers refuse it. Written explicitly, the
slope is a forward computation: its gradient is of first order.

Shape suffixes: R rows (events or particles), A inputs, D outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.bf16 import Linear, rounded_product
from workloads.base.kernels.rounded_norm import ROUNDED_NORM, ROUNDED_PULLBACK
from workloads.base.native import dense as native

LEAK = 0.2

Pullback = Callable[[Tensor], Tensor]
"""Gradient with respect to a layer's output -> gradient with respect to its input, row by row."""


class Dense(nn.Module):
    """Linear layer, optional layer normalisation, leaky ReLU. Results are bfloat16 with rounded weights."""

    def __init__(self, inputs: int, outputs: int, *, layer_norm: bool) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs) if layer_norm else None

    def forward(self, input_RA: Tensor) -> Tensor:
        """Output of the layer. (R, A) -> (R, D)."""
        if self.linear.is_rounded:
            return self.activate(self.linear(input_RA))
        weight_DA = self.linear.weight
        if library := native.library_for(input_RA, weight_DA):
            return native.dense(library, input_RA, weight_DA, self.linear.bias, self.norm, LEAK)[0]
        return self.activate(self.linear(input_RA))

    def activate(self, linear_RD: Tensor) -> Tensor:
        """Normalisation and activation after the linear part. (R, D) -> (R, D)."""
        norm = self.norm
        if norm is None:
            return F.leaky_relu(linear_RD, LEAK)
        if self.linear.is_rounded:
            rounded_RD: Tensor = ROUNDED_NORM(linear_RD, norm.weight, norm.bias, norm.eps, LEAK)[0]
            return rounded_RD
        return F.leaky_relu(norm(linear_RD), LEAK, inplace=True)

    def with_pullback(self, input_RA: Tensor) -> tuple[Tensor, Pullback]:
        """Output and pullback of a gradient through the layer; both are differentiable."""
        if self.linear.is_rounded:
            return self._rounded_with_pullback(input_RA)
        weight_DA, norm = self.linear.weight, self.norm
        library = native.library_for(input_RA, weight_DA)
        if library is not None and norm is not None:
            layer = native.dense(library, input_RA, weight_DA, self.linear.bias, norm, LEAK)
            scale_D = norm.weight
            return layer[0], lambda slope_RD: native.pullback(library, slope_RD, layer, weight_DA, scale_D, LEAK)
        linear_RD = F.linear(input_RA, weight_DA, self.linear.bias)
        if norm is None:
            output_RD = F.leaky_relu(linear_RD, LEAK)
            return output_RD, lambda gradient_RD: _leaky_pullback(gradient_RD, output_RD) @ weight_DA
        normal_RD, mean_R1, inverse_R1 = torch.native_layer_norm(
            linear_RD, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        )
        output_RD = F.leaky_relu(normal_RD, LEAK, inplace=True)

        def pullback(gradient_RD: Tensor) -> Tensor:
            through_RD = _leaky_pullback(gradient_RD, output_RD)
            row_RD: Tensor = _LayerNormPullback.apply(through_RD, linear_RD, mean_R1, inverse_R1, norm.weight)
            return row_RD @ weight_DA

        return output_RD, pullback

    def _rounded_with_pullback(self, input_RA: Tensor) -> tuple[Tensor, Pullback]:
        """The same in bfloat16; the pulled gradient has the precision of the input."""
        linear_RD, norm = self.linear(input_RA), self.norm
        weight_DA, rounded_DA = self.linear.pair
        back, wide = (weight_DA.t(), rounded_DA.t()), input_RA.dtype == torch.float32
        if norm is None:
            output_RD = F.leaky_relu(linear_RD, LEAK)
            return output_RD, lambda slope_RD: rounded_product(
                _leaky_pullback(slope_RD.to(torch.bfloat16), output_RD), back, wide=wide
            )
        output_RD, mean_R1, inverse_R1 = ROUNDED_NORM(linear_RD, norm.weight, norm.bias, norm.eps, LEAK)
        fixed_RD = output_RD.detach()

        def pullback(gradient_RD: Tensor) -> Tensor:
            row_RD = ROUNDED_PULLBACK(
                *(gradient_RD.to(torch.bfloat16), fixed_RD, linear_RD, mean_R1, inverse_R1, norm.weight, LEAK)
            )
            return rounded_product(row_RD, back, wide=wide)

        return output_RD, pullback


class _LayerNormPullback(torch.autograd.Function):
    """Pullback r = J(γ u) of layer normalisation: its transposed derivative, applied to u.

    With x̂ the normalised row, σ its spread and n its length, J v = (v - mean(v) - x̂ mean(x̂ v)) / σ is symmetric, so
    that the gradient with respect to γ u of ⟨s, r⟩ is J s. That with respect to the row itself is
    -((s·r) x̂ + (x̂·s) r + (x̂·γu) J s) / (n σ). On a CPU it is three times as fast as autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, u_RD: Tensor, row_RD: Tensor, mean_R1: Tensor, inverse_R1: Tensor, weight_D: Tensor
    ) -> Tensor:
        r_RD = _pull(u_RD, row_RD, mean_R1, inverse_R1, weight_D)
        ctx.save_for_backward(u_RD, row_RD, mean_R1, inverse_R1, weight_D, r_RD)
        return r_RD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (s_RD,) = gradients
        u_RD, row_RD, mean_R1, inverse_R1, weight_D, r_RD = ctx.saved_tensors
        js_RD = _pull(s_RD, row_RD, mean_R1, inverse_R1, None)
        # Each pass over the rows is expensive: row products are shared, and summed by matrix-vector products.
        centred_RD = row_RD - mean_R1
        products_RD = u_RD * js_RD
        weight_gradient_D = products_RD.sum(0)
        scale_R = (inverse_R1 * inverse_R1 / -row_RD.shape[1]).squeeze(1)
        of_row_R = (products_RD @ weight_D) * scale_R  # s·r = J(γ u)·s = γ u·J s
        of_r_R = torch.mul(centred_RD, s_RD, out=products_RD).sum(1) * scale_R
        of_js_R = (torch.mul(centred_RD, u_RD, out=products_RD) @ weight_D) * scale_R
        row_gradient_RD = centred_RD.mul_(of_row_R.unsqueeze(1))
        row_gradient_RD.addcmul_(r_RD, of_r_R.unsqueeze(1)).addcmul_(js_RD, of_js_R.unsqueeze(1))
        return js_RD.mul_(weight_D), row_gradient_RD, None, None, weight_gradient_D


def _leaky_pullback(gradient_RD: Tensor, output_RD: Tensor) -> Tensor:
    """Pullback of the leaky ReLU, with a second derivative of 0."""
    pulled_RD: Tensor = torch.ops.aten.leaky_relu_backward(gradient_RD, output_RD.detach(), LEAK, True)
    return pulled_RD


def _pull(u_RD: Tensor, row_RD: Tensor, mean_R1: Tensor, inverse_R1: Tensor, weight_D: Tensor | None) -> Tensor:
    """Vector J(γ u), (R, D); γ = 1 without a weight."""
    r_RD: Tensor = torch.ops.aten.native_layer_norm_backward(
        u_RD.contiguous(), row_RD, [row_RD.shape[1]], mean_R1, inverse_R1, weight_D, None, [True, False, False]
    )[0]
    return r_RD
