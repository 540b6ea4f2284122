"""Layers in C++ against torch's, value by value, with their gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from native_layers import compiled, layers_in_cpp
from torch import Tensor, nn

from workloads.base.flops import counted_flops
from workloads.base.native.layers import LAYERS, dense, library_for, pullback
from workloads.muons.models.wgan_networks import LEAK, Dense

pytestmark = pytest.mark.process  # a compiler


def require_same(found: Tensor, expected: Tensor, most: float = 1e-6) -> None:
    """Error relative to the largest value."""
    found, expected = found.detach(), expected.detach()
    assert float((found - expected).abs().max()) <= most * float(expected.abs().max())


def layer_of(inputs: int, outputs: int) -> Dense:
    torch.manual_seed(inputs)
    layer = Dense(inputs, outputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return layer


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 7, 32), (100, 128, 128), (53, 262, 64), (48, 3, 96)])
def test_a_layer_and_its_gradients_are_torchs(rows: int, inputs: int, outputs: int) -> None:
    layer = layer_of(inputs, outputs)
    input_RA = torch.randn(rows, inputs, requires_grad=True)
    slope_RD = torch.randn(rows, outputs)
    expected = layer(input_RA)
    found = dense(compiled(), input_RA, layer.linear.weight, layer.linear.bias, layer.norm, LEAK)[0]
    require_same(found, expected)
    of = [input_RA, *layer.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, of, slope_RD), torch.autograd.grad(expected, of, slope_RD), strict=True
    ):
        require_same(one, other, 5e-6)


def test_a_pullback_and_its_gradients_are_those_of_double_precision() -> None:
    layer = layer_of(40, 64)
    input_RA, slope_RD, weight_RA = torch.randn(70, 40), torch.randn(70, 64), torch.randn(70, 40)

    def gradients(layer: Dense, *rows: Tensor, cpp: bool) -> list[Tensor]:
        input_RA, slope_RD, weight_RA = rows
        of = [input_RA.requires_grad_(), slope_RD.requires_grad_(), *layer.parameters()]
        if cpp:
            found = dense(compiled(), input_RA, layer.linear.weight, layer.linear.bias, layer.norm, LEAK)
            result_RA = pullback(compiled(), slope_RD, found, layer.linear.weight, layer.norm.weight, LEAK)
        else:
            output_RD = F.leaky_relu(layer.norm(layer.linear(input_RA)), LEAK)
            (result_RA,) = torch.autograd.grad(output_RD, input_RA, slope_RD, create_graph=True)
        return [result_RA.detach(), *torch.autograd.grad((result_RA * weight_RA).sum(), of, allow_unused=True)]

    found = gradients(layer, input_RA, slope_RD, weight_RA, cpp=True)
    expected = gradients(
        layer.double(), *(rows.detach().double() for rows in (input_RA, slope_RD, weight_RA)), cpp=False
    )
    for one, other in zip(found, expected, strict=True):
        zero = torch.zeros(1)  # no gradient
        require_same(*(zero if values is None else values.double() for values in (one, other)), 1e-5)


@pytest.mark.parametrize("input_is_trained", [True, False])
def test_a_layer_and_its_pullback_have_as_many_operations_as_torchs(*, input_is_trained: bool) -> None:
    layer, slope_RD = layer_of(7, 32), torch.randn(10, 32, requires_grad=True)
    input_RA = torch.randn(10, 7, requires_grad=input_is_trained)
    of = [*([input_RA] if input_is_trained else []), layer.linear.weight, slope_RD]
    flops = []
    for context in (nullcontext(), layers_in_cpp()):
        with context, counted_flops() as count:
            output_RD, back = layer.with_pullback(input_RA)
            torch.autograd.grad(output_RD.square().sum() + back(slope_RD).square().sum(), of)
        flops.append(count.flops)
    assert flops[0] == flops[1] > 0


def test_a_value_that_is_not_finite_stays_so() -> None:
    layer = layer_of(5, 32)
    input_RA = torch.ones(20, 5)
    input_RA[7, 2] = torch.nan
    found = dense(compiled(), input_RA, layer.linear.weight, layer.linear.bias, layer.norm, LEAK)[0]
    assert found.isnan().any(1).tolist() == [row == 7 for row in range(20)]


def test_torch_computes_what_the_library_cannot() -> None:
    rows, weight = torch.randn(3, 5), torch.randn(32, 5)
    assert library_for(rows, weight) is None  # not in use
    with layers_in_cpp():
        assert library_for(rows, weight) is compiled(LAYERS)
        assert library_for(rows, torch.randn(33, 5)) is None
        assert library_for(rows.double(), weight.double()) is None
        assert library_for(rows.to("meta"), weight) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert library_for(rows, weight) is None


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    layer = layer_of(5, 32)
    input_RA = torch.randn(20, 5, requires_grad=True)
    output = dense(compiled(), input_RA, layer.linear.weight, layer.linear.bias, layer.norm, LEAK)[0]
    (slope_RA,) = torch.autograd.grad(output.sum(), input_RA, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope_RA.sum().backward()


def test_a_row_whose_spread_overflows_is_not_finite() -> None:
    layer = layer_of(4, 32)
    rows = torch.tensor([[1e30, -1e30, 5e29, 1e30], [1.0, 2.0, 3.0, 4.0]])
    found = dense(compiled(), rows, layer.linear.weight, layer.linear.bias, layer.norm, LEAK)[0]
    assert not found[0].isfinite().any()
    assert found[1].isfinite().all()
