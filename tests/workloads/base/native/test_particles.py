"""Two layers over the particles of events in C++, against torch's operations, value by value, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_layers import compiled, layers_in_cpp
from torch import Tensor

from workloads.base.native.layers import LAYERS, library_for, pooled
from workloads.base.segments import Segments

pytestmark = pytest.mark.process  # a compiler

LEAK = 0.2
COUNTS = ([1], [3, 0, 60, 1, 0], [48, 12, 7])


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def segments_of(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def compare(compute: Callable[[], Tensor], in_torch: Callable[[], Tensor], of: Sequence[Tensor]) -> None:
    """Results and gradients."""
    slope = torch.randn(compute().shape)
    results = []
    for function in (compute, in_torch):
        value = function()
        results.append([value.detach(), *torch.autograd.grad(value, of, slope)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5 * max(1.0, float(other.abs().max())))


def make_layers(num_events: int, width: int) -> list[Tensor]:
    """Context, then weight, scale and shift of the first layer, weight, bias, scale and shift of the second."""
    scales = [torch.empty(width).uniform_(-1, 1).requires_grad_() for _ in range(4)]
    second = numbers(width, width), numbers(width)
    return [numbers(num_events, width), numbers(width, 3), *scales[:2], *second, *scales[2:]]


def in_cpp(input_PA: Tensor, counts: list[int], layers: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    context_ED, weight1, scale1, shift1, weight2, bias2, scale2, shift2 = layers
    norms = [SimpleNamespace(weight=of[0], bias=of[1], eps=1e-5) for of in ((scale1, shift1), (scale2, shift2))]
    of_layers: Any = (weight1, norms[0]), (weight2, bias2, norms[1])
    return pooled(compiled(), input_PA, context_ED, segments_of(counts), *of_layers, LEAK)


def by_torch(input_PA: Tensor, counts: list[int], layers: Sequence[Tensor]) -> Tensor:
    """Mean and maximum over each event of both layers."""
    context_ED, weight1, scale1, shift1, weight2, bias2, scale2, shift2 = layers
    width = [len(weight1)]
    hidden = F.linear(input_PA, weight1) + context_ED[torch.repeat_interleave(torch.tensor(counts))]
    hidden = F.leaky_relu(F.layer_norm(hidden, width, scale1, shift1), LEAK)
    rows = F.leaky_relu(F.layer_norm(F.linear(hidden, weight2, bias2), width, scale2, shift2), LEAK)
    nothing = torch.zeros(2 * len(weight1), dtype=rows.dtype)
    events = [torch.cat([one.mean(0), one.max(0).values]) if len(one) else nothing for one in rows.split(counts)]
    return torch.stack(events)


@pytest.mark.parametrize("counts", COUNTS)
def test_pooled_layers_and_their_gradients_are_torchs(counts: list[int]) -> None:
    layers = make_layers(len(counts), 64)
    for input_PA in (numbers(sum(counts), 3), numbers(sum(counts), 3).detach()):
        of = [*([input_PA] if input_PA.requires_grad else []), *layers]
        compare(lambda of=input_PA: in_cpp(of, counts, layers)[0], lambda of=input_PA: by_torch(of, counts, layers), of)


def test_of_equal_particles_the_first_is_the_largest() -> None:
    input_PA = torch.ones(5, 3, requires_grad=True)
    found, _ = in_cpp(input_PA, [3, 2], make_layers(2, 32))
    (slope_PA,) = torch.autograd.grad(found[:, 32:].square().sum(), input_PA)
    assert slope_PA[[0, 3]].abs().min() > 0
    assert slope_PA[[1, 2, 4]].abs().max() == 0


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("counts", COUNTS)
def test_the_slope_of_pooled_layers_and_its_gradients_are_those_of_double_precision(
    counts: list[int], width: int
) -> None:
    """With that of what was pooled, as in the critic: the gradient that is pulled back depends on it, too."""
    of = [numbers(sum(counts), 3), numbers(len(counts), 2 * width), *make_layers(len(counts), width)]
    weight_PA, weight_ED = numbers(sum(counts), 3).detach(), numbers(len(counts), 2 * width).detach()
    pooled_ED, back = in_cpp(of[0], counts, of[2:])
    found_PA = back(of[1])
    exact = [one.detach().double().requires_grad_() for one in of]
    exact_ED = by_torch(exact[0], counts, exact[2:])
    (expected_PA,) = torch.autograd.grad(exact_ED, exact[0], exact[1], create_graph=True)
    scale = float(expected_PA.detach().abs().max())
    torch.testing.assert_close(found_PA.double(), expected_PA, rtol=0, atol=5e-6 * scale)
    found = torch.autograd.grad((found_PA * weight_PA).sum() + (pooled_ED * weight_ED).sum(), of)
    expected = torch.autograd.grad((expected_PA * weight_PA).sum() + (exact_ED * weight_ED).sum(), exact)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5 * max(1.0, float(other.abs().max())))


def test_a_number_that_is_not_finite_stays_in_its_event() -> None:
    input_PA = numbers(55, 3)
    with torch.no_grad():
        input_PA[3, 1] = torch.nan
    pooled_ED, back = in_cpp(input_PA, [3, 2, 50], make_layers(3, 32))
    slope_PA = back(numbers(3, 64).detach())
    assert pooled_ED.isnan().any(1).tolist() == [False, True, False]
    assert slope_PA.isnan().any(1).tolist() == [row == 3 for row in range(55)]
    (to_input_PA,) = torch.autograd.grad(slope_PA.square().sum(), input_PA)
    assert to_input_PA.isnan().any(1).nonzero().flatten().tolist() == [3]


def test_no_particles_at_all_give_no_slope() -> None:
    layers = make_layers(2, 32)
    pooled_ED, back = in_cpp(numbers(0, 3), [0, 0], layers)
    slope_PA = back(numbers(2, 64))
    assert pooled_ED.abs().max() == 0
    assert slope_PA.shape == (0, 3)
    (to_weight_DA,) = torch.autograd.grad(slope_PA.sum() + pooled_ED.sum(), layers[1])
    assert to_weight_DA.abs().max() == 0


def test_a_row_whose_spread_overflows_is_not_finite() -> None:
    layers = make_layers(2, 32)
    with torch.no_grad():
        layers[0][0] = 1e30 * torch.tensor([1.0, -1.0] * 16)
    pooled_ED, _ = in_cpp(numbers(5, 3), [2, 3], layers)
    assert not pooled_ED[0].isfinite().any()
    assert pooled_ED[1].isfinite().all()


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    input_PA = numbers(5, 3)
    pooled_ED, _ = in_cpp(input_PA, [3, 2], make_layers(2, 32))
    (slope_PA,) = torch.autograd.grad(pooled_ED.sum(), input_PA, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope_PA.sum().backward()


def test_torch_computes_what_the_library_cannot() -> None:
    rows, weight = torch.randn(3, 5), torch.randn(32, 5)
    assert library_for(rows, weight) is None  # not in use
    with layers_in_cpp():
        assert library_for(rows, weight) is LAYERS.used is not None
        assert library_for(rows, torch.randn(33, 5)) is None
        assert library_for(rows.double(), weight.double()) is None
        assert library_for(rows.to("meta"), weight) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert library_for(rows, weight) is None


def test_without_a_compiler_torch_computes_the_layers_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not LAYERS.use()
    assert LAYERS.used is None
    assert caplog.messages == ["layers on the CPU: torch, slower than C++ (there is no C++ compiler)"]
