"""Launches of the Triton kernels of a dense layer. Imports Triton. Shape suffixes: R rows, D columns.

Rows of more than _MOST_COLUMNS values, which no register file holds, are computed by torch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from workloads.base.kernels import layers_torch
from workloads.base.kernels import layers_triton as kernels
from workloads.base.kernels.launch import accumulator, on_device_of

_MOST_COLUMNS = 4096
_BLOCK = 2048
"""Values that a program reads at once, if a row has no more."""
_PROGRAMS = 1024
"""Programs that sum columns: about 8 for each multiprocessor, so that their partial sums are few."""


def activate(
    linear_RD: Tensor,
    bias_D: Tensor | None,
    scale_D: Tensor | None,
    shift_D: Tensor | None,
    epsilon: float,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See layers_torch."""
    if linear_RD.shape[1] > _MOST_COLUMNS:
        return layers_torch.activate(linear_RD, bias_D, scale_D, shift_D, epsilon, leak)
    linear_RD = linear_RD.contiguous()
    num_rows, columns = linear_RD.shape
    output_RD, has_norm = torch.empty_like(linear_RD), scale_D is not None
    statistics = layers_torch.statistics_of(linear_RD)
    mean_R1, inverse_R1 = (statistics.new_empty((num_rows, 1) if has_norm else 0) for _ in range(2))
    if output_RD.numel():
        block = _blocks(linear_RD)
        with on_device_of(linear_RD):
            kernels.activate_rows[(triton.cdiv(num_rows, block["ROWS"]),)](
                linear_RD, scale_D, shift_D, output_RD, mean_R1, inverse_R1, num_rows, columns,
                NORM=has_norm, EPSILON=epsilon, LEAK=leak, **block,
            )  # fmt: skip
    return output_RD, mean_R1, inverse_R1


def pull(gradient_RD: Tensor, *layer: Any) -> Tensor:
    """See layers_torch."""
    if gradient_RD.shape[1] > _MOST_COLUMNS:
        return layers_torch.pull(gradient_RD, *layer)
    return _pulled(gradient_RD, *layer, sums=False)[0]


def pull_with_sums(gradient_RD: Tensor, *layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See layers_torch."""
    if gradient_RD.shape[1] > _MOST_COLUMNS:
        return layers_torch.pull_with_sums(gradient_RD, *layer)
    pulled_RD, sums_KD = _pulled(gradient_RD, *layer, sums=True)
    if len(sums_KD) == 1:  # without a scale
        return pulled_RD, sums_KD[0], sums_KD.new_empty(0), sums_KD.new_empty(0)
    return pulled_RD, sums_KD[0], sums_KD[1], sums_KD[2]


def pull_backward(
    s_RD: Tensor,
    gradient_RD: Tensor,
    output_RD: Tensor,
    linear_RD: Tensor | None,
    mean_R1: Tensor | None,
    inverse_R1: Tensor | None,
    scale_D: Tensor | None,
    r_RD: Tensor,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See layers_torch. Without a normalisation it is the ReLU's own pullback."""
    if gradient_RD.shape[1] > _MOST_COLUMNS:
        layer = (linear_RD, mean_R1, inverse_R1, scale_D)
        return layers_torch.pull_backward(s_RD, gradient_RD, output_RD, *layer, r_RD, leak)
    if scale_D is None:
        nothing = layers_torch.statistics_of(gradient_RD)
        to_gradient_RD = _pulled(s_RD, output_RD, None, None, None, None, leak, sums=False)[0]
        return to_gradient_RD.to(gradient_RD.dtype), nothing, nothing.clone()
    assert linear_RD is not None
    s_RD, gradient_RD, output_RD, linear_RD = (one.contiguous() for one in (s_RD, gradient_RD, output_RD, linear_RD))
    to_gradient_RD, to_row_RD = torch.empty_like(gradient_RD), torch.empty_like(linear_RD)
    block = _blocks(gradient_RD)
    programs, rows_each = _share(gradient_RD.shape[0], block["ROWS"])
    parts_TD = layers_torch.statistics_of(gradient_RD).new_empty(programs, gradient_RD.shape[1])
    if gradient_RD.numel():
        with on_device_of(gradient_RD):
            kernels.pull_backward_rows[(programs,)](
                s_RD, gradient_RD, output_RD, linear_RD, mean_R1, inverse_R1, scale_D, r_RD.contiguous(),
                to_gradient_RD, to_row_RD, parts_TD, *gradient_RD.shape[:1], rows_each, gradient_RD.shape[1],
                LEAK=leak, **block,
            )  # fmt: skip
    return to_gradient_RD, to_row_RD, parts_TD.sum(0)


def _pulled(
    gradient_RD: Tensor,
    output_RD: Tensor,
    linear_RD: Tensor | None,
    mean_R1: Tensor | None,
    inverse_R1: Tensor | None,
    scale_D: Tensor | None,
    leak: float,
    *,
    sums: bool,
) -> tuple[Tensor, Tensor]:
    """Pullback, and sums (K, D) of bias, scale and shift if asked for."""
    gradient_RD, output_RD = gradient_RD.contiguous(), output_RD.contiguous()
    linear_RD = None if linear_RD is None else linear_RD.contiguous()
    num_rows, columns = gradient_RD.shape
    pulled_RD, has_norm = torch.empty_like(gradient_RD), scale_D is not None
    block = _blocks(gradient_RD)
    programs, rows_each = (
        _share(num_rows, block["ROWS"]) if sums else (triton.cdiv(num_rows, block["ROWS"]), block["ROWS"])
    )
    parts_TKD = layers_torch.statistics_of(gradient_RD).new_empty(
        programs if sums else 0, 3 if has_norm else 1, columns
    )
    if pulled_RD.numel():
        with on_device_of(gradient_RD):
            kernels.pull_rows[(programs,)](
                gradient_RD, output_RD, linear_RD, mean_R1, inverse_R1, scale_D, pulled_RD, parts_TKD,
                num_rows, rows_each, columns, NORM=has_norm, SUMS=sums, LEAK=leak, **block,
            )  # fmt: skip
    return pulled_RD, parts_TKD.sum(0) if sums else parts_TKD


def _blocks(values_RD: Tensor) -> dict[str, Any]:
    """Sizes of a program's block of whole rows, and the type that it computes in."""
    columns: int = triton.next_power_of_2(max(values_RD.shape[1], 1))
    return {"ROWS": max(_BLOCK // columns, 1), "COLUMNS": columns, "ACC": accumulator(values_RD)}


def _share(num_rows: int, rows: int) -> tuple[int, int]:
    """Programs that share the rows, and rows of each, a multiple of ``rows``."""
    rows_each: int = rows * triton.cdiv(triton.cdiv(num_rows, rows), _PROGRAMS)
    return (triton.cdiv(num_rows, rows_each), rows_each) if num_rows else (0, rows)
