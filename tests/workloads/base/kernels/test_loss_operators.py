"""Registered operators of scores, losses and single passes: torch's checks, and their derivatives by autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loss_cases import COUNTS, draw, elementwise_calls, event_calls, loss_calls, score_calls

from workloads.base.kernels import event_losses_torch, scores_torch
from workloads.base.kernels.event_losses import GRADIENT_PENALTY, ROW_SCORES
from workloads.base.kernels.scores import BOUNDED_LOSS, SCORE, SCORE_SLOPE

DIFFERENTIABLE = {"score": 4, "score_slope": 4, "bounded_loss": 1, "gradient_penalty": 1, "row_scores": 1}
"""Number of the first arguments that have gradients."""


def calls(dtype: torch.dtype) -> list[tuple[str, tuple[Any, ...]]]:
    found = [*score_calls(4, 3, dtype)]
    if dtype != torch.bfloat16:
        found += [*loss_calls(5, dtype), *event_calls(COUNTS["empty events around others"], dtype)]
    return found


def trained(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    num = DIFFERENTIABLE[name]
    return (*(one.detach().clone().requires_grad_(True) for one in arguments[:num]), *arguments[num:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's tracing warns of itself
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_torch_finds_no_fault_in_an_operator(dtype: torch.dtype) -> None:
    for name, arguments in calls(dtype):
        operator = getattr(torch.ops.icestream, name).default
        torch.library.opcheck(operator, arguments)
        if name in DIFFERENTIABLE:
            torch.library.opcheck(operator, trained(name, arguments))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torch_finds_no_fault_in_an_operator_without_a_derivative() -> None:
    for name, arguments in elementwise_calls(7):
        if any(isinstance(one, torch.Tensor) and one.isnan().any() for one in arguments):
            continue  # torch compares results, and a NaN equals nothing
        torch.library.opcheck(getattr(torch.ops.icestream, name).default, arguments)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_torchs_own_operations(name: str) -> None:
    """By autograd through the implementation on the CPU."""
    module = scores_torch if hasattr(scores_torch, name) else event_losses_torch
    for one, arguments in calls(torch.float64):
        if one != name:
            continue
        inputs = trained(name, arguments)
        operator = getattr(torch.ops.icestream, name).default
        results = []
        for function in (operator, getattr(module, name)):
            result = function(*inputs)
            result = result[0] if isinstance(result, tuple) else result
            slope = draw(*result.shape, dtype=torch.float64, seed=9)
            weights = inputs[: DIFFERENTIABLE[name]]
            results.append(torch.autograd.grad(result, weights, slope, materialize_grads=True))
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)


def test_scores_and_their_loss_can_be_differentiated_twice() -> None:
    for operator, (_, arguments) in (
        (SCORE, next(one for one in score_calls(4, 3, torch.float64) if one[0] == "score")),
        (SCORE_SLOPE, next(one for one in score_calls(4, 3, torch.float64) if one[0] == "score_slope")),
        (BOUNDED_LOSS, [one for one in loss_calls(5, torch.float64) if one[0] == "bounded_loss"][1]),
    ):
        num = {SCORE: 4, SCORE_SLOPE: 4, BOUNDED_LOSS: 1}[operator]
        inputs = tuple(one.detach().clone().requires_grad_(True) for one in arguments[:num])

        def function(*values: Any, operator: Any = operator, others: Any = arguments[num:]) -> Any:
            result = operator(*values, *others)
            return result[0] if isinstance(result, tuple) else result

        assert torch.autograd.gradgradcheck(function, inputs)


def test_penalty_and_energy_score_can_be_differentiated_once_only() -> None:
    for name, arguments in event_calls([2, 3], torch.float64):
        if name in DIFFERENTIABLE:
            operator = {"gradient_penalty": GRADIENT_PENALTY, "row_scores": ROW_SCORES}[name]
            inputs = trained(name, arguments)
            with pytest.raises(RuntimeError, match="once only"):
                torch.autograd.grad(operator(*inputs)[0].sum(), inputs[0], create_graph=True)
