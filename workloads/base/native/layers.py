"""Layers in C++ as functions of torch, and the library that they are in; torch computes them where it can't be built.

Two layers over the particles of events (linear, normalisation, leaky ReLU) with pooling, and their pullback. Same
results as torch's to 1e-6, relative; differentiable once.

Shape suffixes: P particles, E events, A inputs, D width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from common.native import NativeLibrary, NativeSources
from workloads.base.segments import Segments

LAYERS = NativeLibrary(
    NativeSources(
        "layers",
        files=(Path(__file__).with_name("particles.cpp"),),
        functions={
            "pooled_forward": "p ll p l ppp pp f pppp f f pppp",
            "pooled_backward": "ppp p ll p l ppp pp f ppp f ppp ppppppppp",
            "slope_forward": "pp ll p l ppp pp f ppp f ppp pp",
            "slope_backward": "ppp ll p l ppp pp f ppp f ppp p ppp pppp",
        },
    ),
    without="layers on the CPU: torch, slower than C++",
)


_WIDTH = 32
"""Outputs of a layer are a multiple of this."""


def library_for(input_RA: Tensor, weight_DA: Tensor) -> ctypes.CDLL | None:
    """Library that computes a layer of these tensors, None if torch has to: on a GPU, say, or under autocast."""
    library = LAYERS.used
    if library is None or not (input_RA.is_cpu and input_RA.dtype == weight_DA.dtype == torch.float32):
        return None
    if weight_DA.shape[0] % _WIDTH or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    return library


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
        _call(
            *(library.pooled_forward, input_PA, rows, inputs, weight1_DA, width, context_ED, event_P, counts_E),
            *(scale1_D, shift1_D, epsilon1, weight2_DD, bias2_D, scale2_D, shift2_D, epsilon2, leak),
            *(normal2_PD, inverse2_P, pooled_ED, largest_ED),
        )
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
        events, width = context_ED.shape
        of_pooled, of_rows = gradients[:2]
        of_pooled = input_PA.new_zeros(events, 2 * width) if of_pooled is None else of_pooled.contiguous()
        of_rows1, of_rows2 = (None, None) if of_rows is None else of_rows.contiguous()
        to_input = torch.empty_like(input_PA) if ctx.needs_input_grad[1] else None
        to_weight1 = to_context = to_scale1 = to_shift1 = to_weight2 = to_bias2 = to_scale2 = to_shift2 = None
        if ctx.needs_input_grad[5]:
            to_weight1, to_weight2 = torch.empty_like(weight1_DA), torch.empty_like(weight2_DD)
            to_context = torch.zeros_like(context_ED)
            to_scale1, to_shift1, to_bias2, to_scale2, to_shift2 = input_PA.new_zeros(5, width).unbind(0)
        _call(
            *(ctx.library.pooled_backward, of_pooled, of_rows1, of_rows2, *_layers(ctx.saved_tensors, *ctx.constants)),
            *(to_input, to_weight1, to_context, to_scale1, to_shift1, to_weight2, to_bias2, to_scale2, to_shift2),
        )
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
        _call(library.slope_forward, of_pooled_ED, *_layers(layers, *ctx.constants), middle_PD, slope_PA)
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
        _call(
            *(ctx.library.slope_backward, of_slope, of_pooled_ED, *_layers(layers, *ctx.constants), middle_PD),
            *(to_pooled, *to_rows, to_weight1, to_scale1, to_weight2, to_scale2),
        )
        return (
            *(to_pooled, to_rows, None, None, None, None, None, None, to_weight1, to_scale1, None, to_weight2),
            *(to_scale2, None, None, None, None),
        )


def _layers(tensors: Sequence[Tensor], epsilon1: float, leak: float) -> tuple[Tensor | float, ...]:
    """Arguments for the layers of `_Pooled` and their results, as the library takes them."""
    input_PA, context_ED, event_P, counts_E, weight1_DA, scale1_D, shift1_D, weight2_DD, *kept = tensors
    return (
        *(input_PA, *input_PA.shape, weight1_DA, len(weight1_DA), context_ED, event_P, counts_E),
        *(scale1_D, shift1_D, epsilon1, weight2_DD, *kept[:2], leak, *kept[2:]),
    )


def _call(function: Callable[..., Any], *arguments: Tensor | float | None) -> None:
    """Call a function of the library with the addresses of the tensors' values."""
    function(*(one.data_ptr() if isinstance(one, Tensor) else one for one in arguments))
