"""Operations of layers in C++: as many as torch's own products of the same layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from native_layers import compiled
from torch import Tensor, nn

from workloads.base.flops import counted_flops
from workloads.base.native.layers import chain, dense, pooled, pullback
from workloads.base.segments import Segments, spread
from workloads.muons.models.wgan_networks import LEAK, Dense

pytestmark = pytest.mark.process  # a compiler


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def flops(compute: Callable[[], Tensor], of: Sequence[Tensor]) -> int:
    """Of both passes."""
    with counted_flops() as count:
        torch.autograd.grad(compute().square().sum(), of)
    return count.flops


@pytest.mark.parametrize("input_is_trained", [True, False])
def test_of_a_layer_and_of_its_pullback(*, input_is_trained: bool) -> None:
    layer = Dense(7, 32, layer_norm=True)
    assert layer.norm is not None
    norm, input_RA, slope_RD = layer.norm, torch.randn(10, 7, requires_grad=input_is_trained), numbers(10, 32)
    of = [*([input_RA] if input_is_trained else []), layer.linear.weight]

    def in_cpp() -> tuple[Tensor, Tensor, Tensor]:
        return dense(compiled(), input_RA, layer.linear.weight, layer.linear.bias, norm, LEAK)

    assert flops(lambda: in_cpp()[0], of) == flops(lambda: layer(input_RA), of) > 0

    def back(cpp: bool) -> Tensor:
        if cpp:
            return pullback(compiled(), slope_RD, in_cpp(), layer.linear.weight, norm.weight, LEAK)
        return layer.with_pullback(input_RA)[1](slope_RD)

    assert flops(lambda: back(True), [*of, slope_RD]) == flops(lambda: back(False), [*of, slope_RD])


def test_of_a_chain_and_of_pooled_layers() -> None:
    counts, width = [3, 0, 60], 64
    segments = Segments.from_counts(torch.tensor(counts), sum(counts))
    noise_PA, context_ED = torch.randn(sum(counts), 8), numbers(len(counts), width)
    weights = numbers(width, 8), numbers(width, width), numbers(width), numbers(2, width), numbers(2)

    def chain_in_torch() -> Tensor:
        hidden = F.leaky_relu(F.linear(noise_PA, weights[0]) + spread(context_ED, segments), LEAK)
        return F.linear(F.leaky_relu(F.linear(hidden, *weights[1:3]), LEAK), *weights[3:])

    def chain_in_cpp() -> Tensor:
        return chain(compiled(), noise_PA, context_ED, segments, weights, LEAK)

    of = [context_ED, *weights]
    assert flops(chain_in_cpp, of) == flops(chain_in_torch, of)

    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    features_PF, weight1_DF, weight2_DD, bias_D = (
        *(numbers(sum(counts), 2), numbers(width, 2), numbers(width, width), numbers(width)),
    )

    def pooled_in_torch() -> Tensor:
        hidden = F.leaky_relu(norms[0](F.linear(features_PF, weight1_DF) + spread(context_ED, segments)), LEAK)
        return F.leaky_relu(norms[1](F.linear(hidden, weight2_DD, bias_D)), LEAK)

    def pooled_in_cpp() -> Tensor:
        layers = (weight1_DF, norms[0]), (weight2_DD, bias_D, norms[1])
        return pooled(compiled(), features_PF, context_ED, segments, *layers, LEAK)[0]

    of_weights = [context_ED, weight1_DF, weight2_DD]
    for of in ([features_PF], of_weights, [features_PF, *of_weights]):
        for one in (features_PF, *of_weights):
            one.requires_grad_(any(one is other for other in of))
        for norm in norms:
            norm.requires_grad_(len(of) > 1)
        bias_D.requires_grad_(len(of) > 1)
        assert flops(pooled_in_cpp, of) == flops(pooled_in_torch, of)
