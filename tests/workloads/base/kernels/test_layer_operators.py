"""Registered operators of a dense layer: torch's checks, and their values and derivatives by autograd.

Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.kernels.layers import ACTIVATE, PULL, PULL_BACKWARD, PULL_WITH_SUMS

LEAK, EPSILON = 0.2, 1e-5
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass
class LayerCase:
    """Rows of a layer before its activation, its parameters, and two gradients."""

    linear_RD: Tensor
    bias_D: Tensor
    scale_D: Tensor
    shift_D: Tensor
    gradient_RD: Tensor
    s_RD: Tensor

    @classmethod
    def of(cls, rows: int, columns: int, dtype: torch.dtype) -> LayerCase:
        """Case of random numbers; parameters of bfloat16 rows are in float32."""
        random = torch.Generator().manual_seed(4)
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float64)

        rows_3RD = draw(3, rows, columns).to(dtype)
        bias_D, scale_D, shift_D = draw(3, columns).to(wide)
        return cls(rows_3RD[0] + 0.5, bias_D, scale_D, shift_D, rows_3RD[1], rows_3RD[2])

    def activated(self, *, norm: bool) -> tuple[Tensor | None, ...]:
        """Arguments of `activate`."""
        return self.linear_RD, self.bias_D, self.scale_D if norm else None, self.shift_D if norm else None


def plain(linear_RD: Tensor, bias_D: Tensor, scale_D: Tensor | None, shift_D: Tensor | None) -> Tensor:
    """The activation, with the bias that is in the rows already."""
    rows_RD = linear_RD.double() - bias_D.detach().double() + bias_D.double()
    if scale_D is not None:
        assert shift_D is not None
        rows_RD = F.layer_norm(rows_RD, scale_D.shape, scale_D.double(), shift_D.double(), EPSILON)
    return F.leaky_relu(rows_RD, LEAK)


def trained(case: LayerCase, *, norm: bool) -> list[Tensor]:
    return [one.detach().clone().requires_grad_(True) for one in case.activated(norm=norm) if one is not None]


def calls(dtype: torch.dtype, *, norm: bool) -> dict[str, tuple[Any, tuple[Any, ...], int]]:
    """Each operator, its arguments, and how many of them are differentiable."""
    case = LayerCase.of(5, 3, dtype)
    output_RD, *statistics = ACTIVATE(*case.activated(norm=norm), EPSILON, LEAK)
    layer = (output_RD, *((case.linear_RD, *statistics, case.scale_D) if norm else (None,) * 4))
    return {
        "activate": (ACTIVATE, (*case.activated(norm=norm), EPSILON, LEAK)),
        "pull": (PULL, (case.gradient_RD, *layer, LEAK)),
        "pull_with_sums": (PULL_WITH_SUMS, (case.gradient_RD, *layer, LEAK)),
        "pull_backward": (
            PULL_BACKWARD,
            (case.s_RD, case.gradient_RD, *layer, PULL(case.gradient_RD, *layer, LEAK), LEAK),
        ),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's tracing warns of itself
@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["activate", "pull", "pull_with_sums", "pull_backward"])
def test_torch_finds_no_fault_in_an_operator(name: str, dtype: torch.dtype, norm: bool) -> None:
    operator, arguments = calls(dtype, norm=norm)[name]
    torch.library.opcheck(operator, arguments)
    if name in ("activate", "pull"):
        is_trained = {"activate": (0, 1, 2, 3), "pull": (0, 2, 5)}[name]
        arguments = tuple(
            one.detach().clone().requires_grad_(number in is_trained) if isinstance(one, Tensor) else one
            for number, one in enumerate(arguments)
        )
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_torchs_layers(dtype: torch.dtype, norm: bool) -> None:
    case = LayerCase.of(40, 24, dtype)
    inputs = trained(case, norm=norm)
    found_RD = ACTIVATE(*(inputs if norm else [*inputs, None, None]), EPSILON, LEAK)[0]
    expected_RD = plain(*(inputs if norm else [*inputs, None, None]))

    assert found_RD.dtype == dtype
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found_RD.double(), expected_RD, **tolerance)
    found = torch.autograd.grad(found_RD, inputs, case.gradient_RD)
    expected = torch.autograd.grad(expected_RD, inputs, case.gradient_RD.double())
    for one, other, input_ in zip(found, expected, inputs, strict=True):
        assert one.dtype == input_.dtype
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
def test_the_pullback_and_its_gradients_are_those_of_autograds_second_derivative(norm: bool) -> None:
    case = LayerCase.of(9, 6, torch.float64)
    inputs = [*trained(case, norm=norm), *(() if norm else (None, None))]
    gradient_RD = case.gradient_RD.clone().requires_grad_(True)
    (expected_RD,) = torch.autograd.grad(plain(*inputs), inputs[0], gradient_RD, create_graph=True)
    output_RD, *statistics = ACTIVATE(*inputs, EPSILON, LEAK)
    of_norm = (inputs[0], *statistics, inputs[2]) if norm else (None,) * 4
    found_RD = PULL(gradient_RD, output_RD.detach(), *of_norm, LEAK)

    torch.testing.assert_close(found_RD, expected_RD)
    weights = [gradient_RD, *((inputs[0], inputs[2]) if norm else ())]
    found = torch.autograd.grad(found_RD, weights, case.s_RD)
    for one, other in zip(found, torch.autograd.grad(expected_RD, weights, case.s_RD), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
def test_the_activation_and_its_pullback_can_be_differentiated_once_only(norm: bool) -> None:
    case = LayerCase.of(4, 3, torch.float64)
    inputs = trained(case, norm=norm)
    output_RD, *statistics = ACTIVATE(*(inputs if norm else [*inputs, None, None]), EPSILON, LEAK)
    of_norm = (case.linear_RD, *statistics, case.scale_D) if norm else (None,) * 4
    gradient_RD = case.gradient_RD.requires_grad_(True)
    pulled_RD = PULL(gradient_RD, output_RD.detach(), *of_norm, LEAK)
    for result_RD, value in ((output_RD, inputs[0]), (pulled_RD, gradient_RD)):
        with pytest.raises(RuntimeError, match="once only"):
            torch.autograd.grad(result_RD.sum(), value, create_graph=True)
