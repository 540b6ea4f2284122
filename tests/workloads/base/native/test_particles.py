"""Two layers over the particles of events in C++, against torch's operations, value by value, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from native_layers import compiled
from torch import Tensor, nn

from workloads.base.native.layers import chain, pooled
from workloads.base.segments import Segments, spread

pytestmark = pytest.mark.process  # a compiler

LEAK = 0.2
COUNTS = ([1], [3, 0, 60, 1, 0], [48, 12, 7])


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def segments_of(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def compare(found: Tensor, expected: Tensor, of: Sequence[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    slope = torch.randn(found.shape)
    for one, other in zip(torch.autograd.grad(found, of, slope), torch.autograd.grad(expected, of, slope), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("features", [2, 3])
def test_a_chain_and_its_gradients_are_torchs(counts: list[int], features: int) -> None:
    segments, width = segments_of(counts), 64
    input_PA, context_ED = numbers(sum(counts), 8).detach(), numbers(len(counts), width)
    weights = numbers(width, 8), numbers(width, width), numbers(width), numbers(features, width), numbers(features)
    hidden = F.leaky_relu(F.linear(input_PA, weights[0]) + spread(context_ED, segments), LEAK)
    expected = F.linear(F.leaky_relu(F.linear(hidden, *weights[1:3]), LEAK), *weights[3:])
    with torch.no_grad():
        alone = chain(compiled(), input_PA, context_ED, segments, weights, LEAK)
    found = chain(compiled(), input_PA, context_ED, segments, weights, LEAK)
    assert torch.equal(found, alone)
    scale = float(expected.detach().abs().max())
    compare(found / scale, expected / scale, [context_ED, *weights])


def test_a_chain_has_no_gradient_for_its_inputs() -> None:
    segments, width = segments_of([2, 3]), 32
    weights = numbers(width, 8), numbers(width, width), numbers(width), numbers(2, width), numbers(2)
    found = chain(compiled(), numbers(5, 8), numbers(2, width), segments, weights, LEAK)
    with pytest.raises(NotImplementedError, match="are noise"):
        found.sum().backward()


@pytest.mark.parametrize("counts", COUNTS)
def test_pooled_layers_and_their_gradients_are_torchs(counts: list[int]) -> None:
    segments, width = segments_of(counts), 64
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    for parameter in (*norms[0].parameters(), *norms[1].parameters()):
        nn.init.uniform_(parameter, -1.0, 1.0)
    input_PA, context_ED = numbers(sum(counts), 3), numbers(len(counts), width)
    weight1_DA, weight2_DD, bias_D = numbers(width, 3), numbers(width, width), numbers(width)
    hidden = F.leaky_relu(norms[0](F.linear(input_PA, weight1_DA) + spread(context_ED, segments)), LEAK)
    rows = F.leaky_relu(norms[1](F.linear(hidden, weight2_DD, bias_D)), LEAK)
    events = [
        torch.cat([one.mean(0), one.max(0).values]) if len(one) else torch.zeros(2 * width)
        for one in rows.split(counts)
    ]
    found, _ = pooled(
        compiled(), input_PA, context_ED, segments, (weight1_DA, norms[0]), (weight2_DD, bias_D, norms[1]), LEAK
    )
    of = [input_PA, context_ED, weight1_DA, weight2_DD, bias_D, *norms[0].parameters(), *norms[1].parameters()]
    compare(found, torch.stack(events), of)


def test_of_equal_particles_the_first_is_the_largest() -> None:
    segments, width = segments_of([3, 2]), 32
    norm = nn.LayerNorm(width)
    input_PA = torch.ones(5, 2, requires_grad=True)
    layers = (numbers(width, 2), norm), (numbers(width, width), numbers(width), norm)
    found, _ = pooled(compiled(), input_PA, numbers(2, width), segments, *layers, LEAK)
    (slope_PA,) = torch.autograd.grad(found[:, width:].square().sum(), input_PA)
    assert slope_PA[[0, 3]].abs().min() > 0
    assert slope_PA[[1, 2, 4]].abs().max() == 0


def slope_by_autograd(input_PA: Tensor, of_pooled_ED: Tensor, counts: list[int], layers: Sequence[Tensor]) -> Tensor:
    """Pullback of the pooled layers, itself differentiable."""
    context_ED, weight1, scale1, shift1, weight2, bias2, scale2, shift2 = layers
    event_P, width = torch.repeat_interleave(torch.tensor(counts)), len(weight1)
    hidden = F.leaky_relu(
        F.layer_norm(F.linear(input_PA, weight1) + context_ED[event_P], [width], scale1, shift1), LEAK
    )
    rows = F.leaky_relu(F.layer_norm(F.linear(hidden, weight2, bias2), [width], scale2, shift2), LEAK)
    events = [
        torch.cat([one.mean(0), one.max(0).values]) if len(one) else torch.zeros(2 * width, dtype=rows.dtype)
        for one in rows.split(counts)
    ]
    (slope_PA,) = torch.autograd.grad(torch.stack(events), input_PA, of_pooled_ED, create_graph=True)
    return slope_PA


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("counts", COUNTS)
def test_the_slope_of_pooled_layers_and_its_gradients_are_those_of_double_precision(
    counts: list[int], width: int
) -> None:
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    for parameter in (*norms[0].parameters(), *norms[1].parameters()):
        nn.init.uniform_(parameter, -1.0, 1.0)
    input_PA, context_ED, of_pooled_ED = (
        numbers(sum(counts), 3),
        numbers(len(counts), width),
        numbers(len(counts), 2 * width),
    )
    weight1_DA, weight2_DD, bias_D = numbers(width, 3), numbers(width, width), numbers(width)
    layers = [context_ED, weight1_DA, *norms[0].parameters(), weight2_DD, bias_D, *norms[1].parameters()]
    of = [input_PA, of_pooled_ED, *layers]
    pooled_ED, back = pooled(
        *(compiled(), input_PA, context_ED, segments_of(counts)),
        *((weight1_DA, norms[0]), (weight2_DD, bias_D, norms[1]), LEAK),
    )
    found = back(of_pooled_ED)
    weight_PA = numbers(sum(counts), 3).detach()
    exact = [one.detach().double().requires_grad_() for one in of]
    expected = slope_by_autograd(exact[0], exact[1], counts, exact[2:])
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-6 * scale)
    # As in the critic: the gradient that is pulled back depends on what was pooled, too.
    found_all = torch.autograd.grad((found * weight_PA).sum() + (pooled_ED * of_pooled_ED.detach()).sum(), of)
    layers_only = torch.autograd.grad((expected * weight_PA.double()).sum(), exact, allow_unused=True)
    pooled_alone, _ = pooled(
        *(compiled(), input_PA, context_ED, segments_of(counts)),
        *((weight1_DA, norms[0]), (weight2_DD, bias_D, norms[1]), LEAK),
    )
    more = torch.autograd.grad((pooled_alone * of_pooled_ED.detach()).sum(), of, allow_unused=True)
    for one, exact_one, other in zip(found_all, layers_only, more, strict=True):
        total = torch.zeros_like(one).double()
        total += 0 if exact_one is None else exact_one
        total += 0 if other is None else other
        torch.testing.assert_close(one.double(), total, rtol=0, atol=2e-5 * max(1.0, float(total.abs().max())))


def test_a_number_that_is_not_finite_stays_in_its_event() -> None:
    counts, width = [3, 2, 50], 32
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    input_PA, of_pooled_ED = numbers(55, 3), numbers(3, 2 * width).detach()
    with torch.no_grad():
        input_PA[3, 1] = torch.nan
    pooled_ED, back = pooled(
        *(compiled(), input_PA, numbers(3, width), segments_of(counts)),
        *((numbers(width, 3), norms[0]), (numbers(width, width), numbers(width), norms[1]), LEAK),
    )
    slope_PA = back(of_pooled_ED)
    assert pooled_ED.isnan().any(1).tolist() == [False, True, False]
    assert slope_PA.isnan().any(1).tolist() == [row == 3 for row in range(55)]
    (to_input_PA,) = torch.autograd.grad(slope_PA.square().sum(), input_PA)
    assert to_input_PA.isnan().any(1).nonzero().flatten().tolist() == [3]


def test_no_particles_at_all_give_no_slope() -> None:
    width = 32
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    weight1_DA = numbers(width, 3)
    pooled_ED, back = pooled(
        *(compiled(), numbers(0, 3), numbers(2, width), segments_of([0, 0])),
        *((weight1_DA, norms[0]), (numbers(width, width), numbers(width), norms[1]), LEAK),
    )
    slope_PA = back(numbers(2, 2 * width))
    assert pooled_ED.abs().max() == 0
    assert slope_PA.shape == (0, 3)
    (to_weight_DA,) = torch.autograd.grad(slope_PA.sum() + pooled_ED.sum(), weight1_DA)
    assert to_weight_DA.abs().max() == 0
