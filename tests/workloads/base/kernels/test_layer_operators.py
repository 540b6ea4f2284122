"""Activation of a dense layer and its pullback: values and derivatives by autograd.

Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.kernels.layers import activate, pull

LEAK, EPSILON = 0.2, 1e-5
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass
class LayerCase:
    """Rows of a layer before its activation, its bias and normalisation, and two gradients."""

    linear_RD: Tensor
    bias_D: Tensor
    norm: nn.LayerNorm
    gradient_RD: Tensor
    s_RD: Tensor

    @classmethod
    def of(cls, rows: int, columns: int, dtype: torch.dtype) -> LayerCase:
        """Case of random numbers; parameters of bfloat16 rows are in float32."""
        random = torch.Generator().manual_seed(4)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        linear_RD, gradient_RD, s_RD = torch.randn(3, rows, columns, generator=random, dtype=torch.float64).to(dtype)
        bias_D, scale_D, shift_D = torch.randn(3, columns, generator=random, dtype=torch.float64).to(wide)
        layer_norm = nn.LayerNorm(columns, EPSILON, dtype=wide)
        layer_norm.weight.data, layer_norm.bias.data = scale_D, shift_D
        linear_RD = (linear_RD + 0.5).requires_grad_()
        return cls(linear_RD, bias_D.requires_grad_(), layer_norm, gradient_RD, s_RD)

    @property
    def trained(self) -> list[Tensor]:
        """Rows and parameters."""
        return [self.linear_RD, self.bias_D, *self.norm.parameters()]

    def plain(self) -> Tensor:
        """The activation in double precision, with the bias that is in the rows already."""
        rows_RD = self.linear_RD.double() - self.bias_D.detach().double() + self.bias_D.double()
        scale_D, shift_D = (one.double() for one in self.norm.parameters())
        return F.leaky_relu(F.layer_norm(rows_RD, scale_D.shape, scale_D, shift_D, EPSILON), LEAK)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [40, 0])
def test_values_and_gradients_are_those_of_torchs_layers(rows: int, dtype: torch.dtype) -> None:
    case = LayerCase.of(rows, 24, dtype)
    found_RD, expected_RD = activate(case.linear_RD, case.bias_D, case.norm, LEAK)[0], case.plain()

    assert found_RD.dtype == dtype
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found_RD.double(), expected_RD, **tolerance)
    found = torch.autograd.grad(found_RD, case.trained, case.gradient_RD)
    expected = torch.autograd.grad(expected_RD, case.trained, case.gradient_RD.double())
    for one, other, input_ in zip(found, expected, case.trained, strict=True):
        assert one.dtype == input_.dtype
        torch.testing.assert_close(one, other, **tolerance)


def test_the_pullback_and_its_gradients_are_those_of_autograds_second_derivative() -> None:
    case = LayerCase.of(9, 6, torch.float64)
    gradient_RD = case.gradient_RD.clone().requires_grad_(True)
    (expected_RD,) = torch.autograd.grad(case.plain(), case.linear_RD, gradient_RD, create_graph=True)
    output_RD, normal = activate(case.linear_RD, case.bias_D, case.norm, LEAK)
    found_RD = pull(gradient_RD, output_RD.detach(), normal, LEAK)

    torch.testing.assert_close(found_RD, expected_RD)
    weights = [gradient_RD, case.linear_RD, case.norm.weight]
    found = torch.autograd.grad(found_RD, weights, case.s_RD)
    for one, other in zip(found, torch.autograd.grad(expected_RD, weights, case.s_RD), strict=True):
        torch.testing.assert_close(one, other)


def test_the_activation_and_its_pullback_can_be_differentiated_once_only() -> None:
    case = LayerCase.of(4, 3, torch.float64)
    output_RD, normal = activate(case.linear_RD, case.bias_D, case.norm, LEAK)
    gradient_RD = case.gradient_RD.requires_grad_(True)
    pulled_RD = pull(gradient_RD, output_RD.detach(), normal, LEAK)
    for result_RD, value in ((output_RD, case.linear_RD), (pulled_RD, gradient_RD)):
        weights_RD = torch.ones_like(result_RD, requires_grad=True)
        (slope_RD,) = torch.autograd.grad(result_RD, value, weights_RD, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope_RD.sum().backward()
