"""Two layers over the particles of events in C++, as functions of torch: a generator's, and a critic's with pooling.

Same results as torch's to 1e-6, relative; differentiable once. Shape suffixes: P particles, E events, A inputs,
D width, F features.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from workloads.base.flops import count_products
from workloads.base.native.dense import address
from workloads.base.segments import Segments


def chain(
    library: ctypes.CDLL,
    input_PA: Tensor,
    context_ED: Tensor,
    segments: Segments,
    weights: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    leak: float,
) -> Tensor:
    """Output of two layers with leaky ReLU and a linear one. (P, A), (E, D) -> (P, F).

    ``context_ED`` is added before the first activation. ``weights``: (D, A); (D, D), (D,); (F, D), (F,).
    """
    is_trained = torch.is_grad_enabled() and any(one.requires_grad for one in (context_ED, *weights))
    features_PF: Tensor = _Chain.apply(input_PA, context_ED, segments.event_P, *weights, leak, is_trained, library)
    return features_PF


def chain_into(
    library: ctypes.CDLL,
    into_FP: Tensor,
    input_PA: Tensor,
    context_ED: Tensor,
    event_P: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    leak: float,
) -> None:
    """Write the output of `chain` into (F, P), of which each row is contiguous. All others are contiguous."""
    (rows, inputs), (features, width) = input_PA.shape, weights[3].shape
    weight1, weight2, bias2, weight3, bias3 = map(address, weights)
    library.chain_forward(
        *(address(input_PA), rows, inputs, weight1, width, address(context_ED), address(event_P)),
        *(weight2, bias2, weight3, bias3, features, leak, None, address(into_FP), 1, into_FP.stride(0)),
    )


def pooled(
    library: ctypes.CDLL,
    input_PA: Tensor,
    context_ED: Tensor,
    segments: Segments,
    first: tuple[Tensor, nn.LayerNorm],
    second: tuple[Tensor, Tensor, nn.LayerNorm],
    leak: float,
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Mean and maximum over each event of two layers with normalisation and leaky ReLU. (P, A), (E, D) -> (E, 2 D).

    ``context_ED`` is added before the first normalisation. Weights: (D, A); (D, D), (D,). 0 for an empty event.
    Then the pullback, which is differentiable once, too: gradient with respect to that -> with respect to the input,
    (E, 2 D) -> (P, A).
    """
    weight_DA, norm1 = first
    weight_DD, bias_D, norm2 = second
    input_PA, context_ED, weight_DA = input_PA.contiguous(), context_ED.contiguous(), weight_DA.contiguous()
    layers = (
        *(input_PA, context_ED, segments.event_P, segments.counts_E, weight_DA, norm1.weight, norm1.bias),
        *(weight_DD.contiguous(), norm2.weight, norm2.bias),
    )
    numbers = norm1.eps, norm2.eps, leak
    pooled_ED, rows_2PD, *kept = _Pooled.apply(bias_D, *layers, numbers, library)

    def slope(of_pooled_ED: Tensor) -> Tensor:
        slope_PA: Tensor = _Slope.apply(of_pooled_ED, rows_2PD, numbers, library, *layers, *kept)
        return slope_PA

    return pooled_ED, slope


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input_PA: Tensor,
        context_ED: Tensor,
        event_P: Tensor,
        weight1_DA: Tensor,
        weight2_DD: Tensor,
        bias2_D: Tensor,
        weight3_FD: Tensor,
        bias3_F: Tensor,
        leak: float,
        is_trained: bool,
        library: ctypes.CDLL,
    ) -> Tensor:
        input_PA, context_ED, weight1_DA = input_PA.contiguous(), context_ED.contiguous(), weight1_DA.contiguous()
        (rows, inputs), width, features = input_PA.shape, weight1_DA.shape[0], weight3_FD.shape[0]
        hidden2_PD = input_PA.new_empty(rows, width) if is_trained else None
        features_PF = input_PA.new_empty(rows, features)
        library.chain_forward(
            *(address(input_PA), rows, inputs, address(weight1_DA), width, address(context_ED), address(event_P)),
            *(address(weight2_DD), address(bias2_D), address(weight3_FD), address(bias3_F), features, leak),
            *(address(hidden2_PD), address(features_PF), features, 1),
        )
        count_products((rows, inputs, width), (rows, width, width), (rows, width, features))
        ctx.save_for_backward(input_PA, context_ED, event_P, weight1_DA, weight2_DD, weight3_FD, hidden2_PD)
        ctx.leak, ctx.library = leak, library
        return features_PF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        input_PA, context_ED, event_P, weight1_DA, weight2_DD, weight3_FD, hidden2_PD = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            raise NotImplementedError("the inputs of a chain are noise: there is no gradient with respect to them")
        of_features = gradients[0].contiguous()
        (rows, inputs), width, features = input_PA.shape, weight1_DA.shape[0], weight3_FD.shape[0]
        to_context = torch.zeros_like(context_ED)
        to_weight1, to_weight2 = torch.empty_like(weight1_DA), torch.empty_like(weight2_DD)
        to_bias2, to_weight3 = input_PA.new_zeros(width), torch.zeros_like(weight3_FD)
        to_bias3 = input_PA.new_zeros(features)
        ctx.library.chain_backward(
            *(address(of_features), address(input_PA), address(hidden2_PD), rows, inputs, width, address(weight1_DA)),
            *(address(context_ED), address(event_P), address(weight2_DD), address(weight3_FD), features, ctx.leak),
            *(
                address(to_weight1),
                address(to_context),
                address(to_weight2),
                address(to_bias2),
                address(to_weight3),
                address(to_bias3),
            ),
        )
        # Not what is computed again: the first layer.
        count_products((rows, inputs, width), *2 * [(rows, width, width)], *2 * [(rows, width, features)])
        return None, to_context, None, to_weight1, to_weight2, to_bias2, to_weight3, to_bias3, None, None, None


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        bias2_D: Tensor,
        input_PA: Tensor,
        context_ED: Tensor,
        event_P: Tensor,
        counts_E: Tensor,
        weight1_DA: Tensor,
        scale1_D: Tensor,
        shift1_D: Tensor,
        weight2_DD: Tensor,
        scale2_D: Tensor,
        shift2_D: Tensor,
        numbers: tuple[float, float, float],
        library: ctypes.CDLL,
    ) -> tuple[Tensor, ...]:
        (rows, inputs), (events, width) = input_PA.shape, context_ED.shape
        epsilon1, epsilon2, leak = numbers
        normal2_PD, inverse2_P = input_PA.new_empty(rows, width), input_PA.new_empty(rows)
        pooled_ED = input_PA.new_zeros(events, 2 * width)
        largest_ED = torch.zeros(events, width, dtype=torch.int32)
        library.pooled_forward(
            *(address(input_PA), rows, inputs, address(weight1_DA), width, address(context_ED), address(event_P)),
            *(address(counts_E), address(scale1_D), address(shift1_D), epsilon1, address(weight2_DD)),
            *(address(bias2_D), address(scale2_D), address(shift2_D), epsilon2, leak, address(normal2_PD)),
            *(address(inverse2_P), address(pooled_ED), address(largest_ED)),
        )
        count_products((rows, inputs, width), (rows, width, width))
        ctx.save_for_backward(
            *(input_PA, context_ED, event_P, counts_E, weight1_DA, scale1_D, shift1_D, weight2_DD, scale2_D, shift2_D),
            *(normal2_PD, inverse2_P, largest_ED),
        )
        ctx.constants, ctx.library = (epsilon1, leak), library
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(normal2_PD, inverse2_P, largest_ED)
        # Without memory: only its gradient is used, that with respect to the rows before each normalisation.
        rows_2PD = input_PA.new_empty(()).expand(2, rows, width)
        return pooled_ED, rows_2PD, normal2_PD, inverse2_P, largest_ED

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        input_PA, context_ED, _, _, weight1_DA, _, _, weight2_DD, *_ = ctx.saved_tensors
        (rows, inputs), (events, width) = input_PA.shape, context_ED.shape
        of_pooled, of_rows = gradients[:2]
        of_pooled = input_PA.new_zeros(events, 2 * width) if of_pooled is None else of_pooled.contiguous()
        of_rows1, of_rows2 = (None, None) if of_rows is None else of_rows.contiguous()
        to_input = torch.empty_like(input_PA) if ctx.needs_input_grad[1] else None
        to_weight1 = to_context = to_scale1 = to_shift1 = to_weight2 = to_bias2 = to_scale2 = to_shift2 = None
        if ctx.needs_input_grad[5]:
            to_weight1, to_weight2 = torch.empty_like(weight1_DA), torch.empty_like(weight2_DD)
            to_context = torch.zeros_like(context_ED)
            to_scale1, to_shift1, to_bias2, to_scale2, to_shift2 = input_PA.new_zeros(5, width).unbind(0)
        ctx.library.pooled_backward(
            *map(address, (of_pooled, of_rows1, of_rows2)),
            *_layers(ctx.saved_tensors, *ctx.constants),
            *map(address, (to_input, to_weight1, to_context, to_scale1, to_shift1, to_weight2, to_bias2)),
            *map(address, (to_scale2, to_shift2)),
        )
        num_gradients = (to_input is not None) + (to_weight1 is not None)
        to_hidden = (rows, width, width)
        count_products(to_hidden, *num_gradients * [(rows, inputs, width)], *[to_hidden][: to_weight2 is not None])
        return (
            *(to_bias2, to_input, to_context, None, None, to_weight1, to_scale1, to_shift1, to_weight2, to_scale2),
            *(to_shift2, None, None),
        )


class _Slope(torch.autograd.Function):
    """Pullback of `_Pooled`. ``rows_2PD`` gets the gradient with respect to the rows before each normalisation."""

    @staticmethod
    def forward(
        ctx: Any,
        of_pooled_ED: Tensor,
        rows_2PD: Tensor,
        numbers: tuple[float, float, float],
        library: ctypes.CDLL,
        *layers: Tensor,
    ) -> Tensor:
        of_pooled_ED, input_PA, width = of_pooled_ED.contiguous(), layers[0], rows_2PD.shape[2]
        middle_PD, slope_PA = input_PA.new_empty(len(input_PA), width), torch.empty_like(input_PA)
        ctx.constants, ctx.library = (numbers[0], numbers[2]), library
        library.slope_forward(
            address(of_pooled_ED), *_layers(layers, *ctx.constants), address(middle_PD), address(slope_PA)
        )
        count_products((len(input_PA), width, width), (*input_PA.shape, width))
        ctx.save_for_backward(of_pooled_ED, middle_PD, *layers)
        return slope_PA

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        of_pooled_ED, middle_PD, *layers = ctx.saved_tensors
        of_slope = gradients[0].contiguous()
        rows, width = middle_PD.shape
        to_pooled, to_rows = torch.zeros_like(of_pooled_ED), middle_PD.new_empty(2, rows, width)
        to_weight1, to_weight2 = torch.empty_like(layers[4]), torch.empty_like(layers[7])
        to_scale1, to_scale2 = middle_PD.new_zeros(2, width).unbind(0)
        ctx.library.slope_backward(
            *(address(of_slope), address(of_pooled_ED), *_layers(layers, *ctx.constants), address(middle_PD)),
            *map(address, (to_pooled, *to_rows, to_weight1, to_scale1, to_weight2, to_scale2)),
        )
        count_products(*2 * [(rows, width, width)], *2 * [(*of_slope.shape, width)])
        return (
            *(to_pooled, to_rows, None, None, None, None, None, None, to_weight1, to_scale1, None, to_weight2),
            *(to_scale2, None, None, None, None),
        )


def _layers(tensors: Sequence[Tensor], epsilon1: float, leak: float) -> tuple[int | float | None, ...]:
    """Arguments for the layers of `_Pooled` and their results, as the library takes them."""
    input_PA, context_ED, event_P, counts_E, weight1_DA, scale1_D, shift1_D, weight2_DD, *kept = tensors
    return (
        *(address(input_PA), *input_PA.shape, address(weight1_DA), len(weight1_DA)),
        *map(address, (context_ED, event_P, counts_E, scale1_D, shift1_D)),
        *(epsilon1, address(weight2_DD), *map(address, kept[:2]), leak, *map(address, kept[2:])),
    )
