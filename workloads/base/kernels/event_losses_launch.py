"""Launches of the Triton kernels of losses by event. Imports Triton. Shape suffixes as in event_losses_torch."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from workloads.base.kernels import event_losses_triton as kernels
from workloads.base.kernels import launch
from workloads.base.kernels.event_losses_torch import DISTANCE_FLOOR, NORM_FLOOR
from workloads.base.kernels.launch import accumulator, on_device_of
from workloads.base.kernels.layers_torch import statistics_of

_VALUES = 1024
_PAIR_VALUES = 256
"""Values of a block whose differences from others are in registers as well."""


def gradient_penalty(
    slope_PF: Tensor,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    present_E: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See event_losses_torch: the sum over an event's particles is that of `pool`."""
    num_particles, columns = slope_PF.shape
    square_P1 = statistics_of(slope_PF).new_empty(num_particles, 1)
    block = _blocks(slope_PF)
    if num_particles:
        with on_device_of(slope_PF):
            kernels.weighted_squares[(triton.cdiv(num_particles, block["ROWS"]),)](
                slope_PF.contiguous(), event_P, counts_E, starts_E, square_P1, num_particles, columns,
                **block,
            )  # fmt: skip
    square_E1 = launch.pool(square_P1, None, event_P, counts_E, starts_E, particles_P, "sum")
    num_events = counts_E.shape[0]
    programs = triton.cdiv(num_events, _VALUES)
    parts_T2 = square_E1.new_empty(programs, 2)
    if num_events:
        with on_device_of(slope_PF):
            kernels.penalty_sums[(programs,)](
                square_E1, present_E, parts_T2, num_events,
                FLOOR=NORM_FLOOR, ACC=accumulator(square_E1), ROWS=_VALUES,
            )  # fmt: skip
    sums_2 = parts_T2.sum(0)
    return sums_2[0], sums_2[1], square_E1.squeeze(1)


def gradient_penalty_backward(
    gradient: Tensor,
    slope_PF: Tensor,
    square_E: Tensor,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    present_E: Tensor,
) -> Tensor:
    """See event_losses_torch."""
    slope_PF = slope_PF.contiguous()
    num_particles, columns = slope_PF.shape
    result_PF, block = torch.empty_like(slope_PF), _blocks(slope_PF)
    if num_particles:
        with on_device_of(slope_PF):
            kernels.penalty_slopes[(triton.cdiv(num_particles, block["ROWS"]),)](
                gradient, slope_PF, square_E, event_P, counts_E, starts_E, present_E, result_PF, num_particles, columns,
                FLOOR=NORM_FLOOR, **block,
            )  # fmt: skip
    return result_PF


def row_scores(generated_MRS: Tensor, real_RS: Tensor) -> tuple[Tensor, Tensor]:
    """See event_losses_torch."""
    times, num_rows, columns = generated_MRS.shape
    statistics = statistics_of(generated_MRS)
    score_R, slope_MSR = statistics.new_empty(num_rows), statistics.new_empty(times, columns, num_rows)
    if slope_MSR.numel():
        block = _blocks(real_RS, _PAIR_VALUES)
        with on_device_of(real_RS):
            kernels.score_sets[(triton.cdiv(num_rows, block["ROWS"]),)](
                generated_MRS.contiguous(), real_RS.contiguous(), score_R, slope_MSR, num_rows, columns,
                TIMES=times, FLOOR=DISTANCE_FLOOR, **block,
            )  # fmt: skip
    return score_R, slope_MSR


def _blocks(values_RD: Tensor, most: int = _VALUES) -> dict[str, Any]:
    columns: int = triton.next_power_of_2(max(values_RD.shape[1], 1))
    return {"ROWS": max(most // columns, 1), "COLUMNS": columns, "ACC": accumulator(values_RD)}
