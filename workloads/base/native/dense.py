"""Layers in C++ as functions of torch: linear layer, layer normalisation, leaky ReLU, and their pullback.

Same results as torch's to 1e-6, relative; differentiable once. Shape suffixes: R rows, A inputs, D outputs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.base.flops import count_products
from workloads.base.native.library import used

_WIDTH = 32
"""Outputs of a layer are a multiple of this."""


def library_for(input_RA: Tensor, weight_DA: Tensor) -> ctypes.CDLL | None:
    """Library that computes a layer of these tensors, None if torch has to: on a GPU, say, or under autocast."""
    library = used()
    if library is None or not (input_RA.is_cpu and input_RA.dtype == weight_DA.dtype == torch.float32):
        return None
    if weight_DA.shape[0] % _WIDTH or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    return library


def dense(
    library: ctypes.CDLL,
    input_RA: Tensor,
    weight_DA: Tensor,
    bias_D: Tensor,
    norm: torch.nn.LayerNorm | None,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output of a layer, its normalised rows and the inverse of their spreads. (R, A) -> (R, D), (R, D), (R,).

    The last two are empty without a normalisation. Differentiate the normalised rows by `pullback` only: what they pass
    back is the gradient with respect to the rows before the normalisation.
    """
    scale, shift, epsilon = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    found: tuple[Tensor, Tensor, Tensor] = _Dense.apply(
        input_RA, weight_DA, bias_D, scale, shift, epsilon, leak, library
    )
    return found


def pullback(
    library: ctypes.CDLL,
    slope_RD: Tensor,
    layer: tuple[Tensor, Tensor, Tensor],
    weight_DA: Tensor,
    scale_D: Tensor,
    leak: float,
) -> Tensor:
    """Gradient with respect to a layer's output -> that with respect to its input. (R, D) -> (R, A).

    ``layer``: result of `dense` with normalisation, ``scale_D`` its factors.
    """
    output_RD, normal_RD, inverse_R = layer
    found: Tensor = _Pullback.apply(
        slope_RD, normal_RD, weight_DA, scale_D, output_RD.detach(), inverse_R, leak, library
    )
    return found


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input_RA: Tensor,
        weight_DA: Tensor,
        bias_D: Tensor,
        scale_D: Tensor | None,
        shift_D: Tensor | None,
        epsilon: float,
        leak: float,
        library: ctypes.CDLL,
    ) -> tuple[Tensor, Tensor, Tensor]:
        input_RA, weight_DA, bias_D = input_RA.contiguous(), weight_DA.contiguous(), bias_D.contiguous()
        rows, (outputs, inputs) = input_RA.shape[0], weight_DA.shape
        output_RD = input_RA.new_empty(rows, outputs)
        normal_RD, inverse_R = input_RA.new_empty(0), input_RA.new_empty(0)
        if scale_D is not None:
            normal_RD, inverse_R = torch.empty_like(output_RD), input_RA.new_empty(rows)
        library.dense_forward(
            *(address(input_RA), rows, inputs, address(weight_DA), outputs, address(bias_D)),
            *(address(scale_D), address(shift_D), epsilon, leak, address(normal_RD), address(inverse_R)),
            address(output_RD),
        )
        count_products((rows, inputs, outputs))
        ctx.save_for_backward(input_RA, weight_DA, scale_D, output_RD, normal_RD, inverse_R)
        ctx.leak, ctx.library = leak, library
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(inverse_R)
        return output_RD, normal_RD, inverse_R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        input_RA, weight_DA, scale_D, output_RD, normal_RD, inverse_R = ctx.saved_tensors
        of_output, of_rows = (None if one is None else one.contiguous() for one in gradients[:2])
        (rows, inputs), outputs = input_RA.shape, weight_DA.shape[0]
        to_input = torch.empty_like(input_RA) if ctx.needs_input_grad[0] else None
        to_bias = input_RA.new_zeros(outputs) if ctx.needs_input_grad[2] else None
        to_weight = to_scale = to_shift = None
        if ctx.needs_input_grad[1]:
            to_weight = torch.empty_like(weight_DA)
            if scale_D is not None:
                to_scale, to_shift = torch.zeros_like(scale_D), torch.zeros_like(scale_D)
        ctx.library.dense_backward(
            *(address(of_output), address(of_rows), address(input_RA), address(normal_RD), address(inverse_R)),
            *(address(output_RD), rows, inputs, address(weight_DA), outputs, address(scale_D), ctx.leak),
            *(address(to_input), address(to_weight), address(to_bias), address(to_scale), address(to_shift)),
        )
        count_products(*((rows, inputs, outputs) for one in (to_input, to_weight) if one is not None))
        return to_input, to_weight, to_bias, to_scale, to_shift, None, None, None


class _Pullback(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        slope_RD: Tensor,
        normal_RD: Tensor,
        weight_DA: Tensor,
        scale_D: Tensor,
        output_RD: Tensor,
        inverse_R: Tensor,
        leak: float,
        library: ctypes.CDLL,
    ) -> Tensor:
        slope_RD, weight_DA = slope_RD.contiguous(), weight_DA.contiguous()
        (rows, outputs), inputs = slope_RD.shape, weight_DA.shape[1]
        pulled_RD, result_RA = torch.empty_like(slope_RD), slope_RD.new_empty(rows, inputs)
        library.pullback_forward(
            *(address(slope_RD), address(normal_RD), address(inverse_R), address(output_RD), rows, inputs),
            *(address(weight_DA), outputs, address(scale_D), leak, address(pulled_RD), address(result_RA)),
        )
        count_products((rows, outputs, inputs))
        ctx.save_for_backward(slope_RD, normal_RD, weight_DA, scale_D, output_RD, inverse_R, pulled_RD)
        ctx.leak, ctx.library = leak, library
        return result_RA

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        slope_RD, normal_RD, weight_DA, scale_D, output_RD, inverse_R, pulled_RD = ctx.saved_tensors
        of_result = gradients[0].contiguous()
        (rows, inputs), outputs = of_result.shape, weight_DA.shape[0]
        to_slope, to_rows = torch.empty_like(slope_RD), torch.empty_like(slope_RD)
        to_weight, to_scale = torch.empty_like(weight_DA), torch.zeros_like(scale_D)
        ctx.library.pullback_backward(
            *(address(of_result), address(slope_RD), address(normal_RD), address(inverse_R)),
            *(address(output_RD), address(pulled_RD), rows, inputs, address(weight_DA), outputs),
            *(address(scale_D), ctx.leak, address(to_slope), address(to_rows), address(to_weight)),
            address(to_scale),
        )
        count_products(*2 * [(rows, inputs, outputs)])
        return to_slope, to_rows, to_weight, to_scale, None, None, None, None


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's values, None for none."""
    return None if tensor is None else tensor.data_ptr()
