"""Layers with an explicit derivative with respect to their input.

The gradient penalty trains on the critic's slope. Autograd can differentiate its own backward pass, but slowly
(half of a step was the second derivative of layer normalisation), and compilers refuse it. Written explicitly, the
slope is a forward computation: its gradient is of first order.

Shape suffixes: R rows (events or particles), A inputs, D outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.bf16 import Linear, rounded_product
from workloads.base.kernels.layers import ACTIVATE, PULL
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
        linear = self.linear
        if linear.is_rounded:
            return self._activated(rounded_product(input_RA, linear.pair, linear.rounded_D), linear.bias)[0]
        weight_DA = linear.weight
        if library := native.library_for(input_RA, weight_DA):
            return native.dense(library, input_RA, weight_DA, linear.bias, self.norm, LEAK)[0]
        if torch.compiler.is_exporting():
            return self.activate(linear(input_RA))
        return self._activated(F.linear(input_RA, weight_DA, linear.bias.detach()), linear.bias)[0]

    def activate(self, linear_RD: Tensor) -> Tensor:
        """Normalisation and activation after the linear part. (R, D) -> (R, D)."""
        if torch.compiler.is_exporting():  # an exported program must run without these operators
            return F.leaky_relu(linear_RD if self.norm is None else self.norm(linear_RD), LEAK)
        return self._activated(linear_RD, None)[0]

    def _activated(self, linear_RD: Tensor, bias_D: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Output and statistics of the rows. ``bias_D``, which is in them already, gets its gradient here: one operator
        sums the columns for all parameters."""
        norm = self.norm
        of_norm = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        found: tuple[Tensor, Tensor, Tensor] = ACTIVATE(linear_RD, bias_D, *of_norm, LEAK)
        return found

    def with_pullback(self, input_RA: Tensor) -> tuple[Tensor, Pullback]:
        """Output and pullback of a gradient through the layer; both are differentiable.

        What the pullback gives has the type of the input.
        """
        weight_DA, norm = self.linear.weight, self.norm
        library = None if self.linear.is_rounded else native.library_for(input_RA, weight_DA)
        if library is not None and norm is not None:
            layer = native.dense(library, input_RA, weight_DA, self.linear.bias, norm, LEAK)
            scale_D = norm.weight
            return layer[0], lambda slope_RD: native.pullback(library, slope_RD, layer, weight_DA, scale_D, LEAK)
        # The pullback depends on the rows as well: the bias has its gradient from both.
        linear_RD = self.linear(input_RA)
        output_RD, *statistics = self._activated(linear_RD, None)
        of_norm = (None, None, None, None) if norm is None else (linear_RD, *statistics, norm.weight)

        def pullback(gradient_RD: Tensor) -> Tensor:
            row_RD: Tensor = PULL(gradient_RD.to(linear_RD.dtype), output_RD.detach(), *of_norm, LEAK)
            if not self.linear.is_rounded:
                return row_RD @ weight_DA
            weight, rounded = self.linear.pair
            return rounded_product(row_RD, (weight.t(), rounded.t()), wide=input_RA.dtype == torch.float32)

        return output_RD, pullback
