"""Operators of losses by event: `torch.ops.icestream.gradient_penalty`, its backward pass and `row_scores`.

On CUDA the penalty is four kernels, five with long events; the others are one. Shape suffixes as in event_losses_torch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from workloads.base.kernels import event_losses_torch as kernels
from workloads.base.kernels.layers_torch import statistics_of
from workloads.base.kernels.registration import register

_LAUNCHES = "workloads.base.kernels.event_losses_launch"
_EVENTS = "Tensor event_P, Tensor counts_E, Tensor starts_E, Tensor particles_P, Tensor present_E"


def _like_penalty(slope_PF: Tensor, event_P: Tensor, counts_E: Tensor, *_: Any) -> tuple[Tensor, ...]:
    statistics = statistics_of(slope_PF)
    return statistics.new_empty(()), statistics.new_empty(()), statistics.new_empty(counts_E.shape)


def _like_row_scores(generated_MRS: Tensor, real_RS: Tensor) -> tuple[Tensor, Tensor]:
    times, rows, columns = generated_MRS.shape
    statistics = statistics_of(generated_MRS)
    return statistics.new_empty(rows), statistics.new_empty(times, columns, rows)


GRADIENT_PENALTY = register(
    f"gradient_penalty(Tensor slope_PF, {_EVENTS}) -> (Tensor, Tensor, Tensor)",
    *(kernels, _LAUNCHES, _like_penalty),
    backward=lambda gradient, arguments, results, _: [
        GRADIENT_PENALTY_BACKWARD(gradient, arguments[0], results[2], *arguments[1:])
    ],
)
GRADIENT_PENALTY_BACKWARD: Any = register(
    f"gradient_penalty_backward(Tensor gradient, Tensor slope_PF, Tensor square_E, {_EVENTS}) -> Tensor",
    *(kernels, _LAUNCHES, lambda gradient, slope_PF, *_: slope_PF.new_empty(slope_PF.shape)),
)
ROW_SCORES = register(
    "row_scores(Tensor generated_MRS, Tensor real_RS) -> (Tensor, Tensor)",
    *(kernels, _LAUNCHES, _like_row_scores),
    backward=lambda gradient_R, arguments, results, _: [
        (results[1] * gradient_R).transpose(1, 2).to(arguments[0].dtype)
    ],
)
