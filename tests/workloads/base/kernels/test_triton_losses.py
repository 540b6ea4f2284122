"""The Triton kernels of scores, losses and single passes against torch's: as test_triton_kernels.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from loss_cases import COUNTS, NUMBERS, SIZES, elementwise_calls, event_calls, loss_calls, score_calls
from torch import Tensor
from triton_runs import TYPES, cases, compile_for_h100, compiles_kernels, triton_device

from workloads.base.kernels import (
    elementwise_launch,
    elementwise_torch,
    event_losses_launch,
    event_losses_torch,
    layers_launch,
    scores_launch,
    scores_torch,
)

device = triton_device

SCORES, EVENTS = (scores_launch, scores_torch), (event_losses_launch, event_losses_torch)
ELEMENTWISE = elementwise_launch, elementwise_torch


def compare(modules: tuple[Any, Any], calls: Iterable[tuple[str, tuple[Any, ...]]], device: torch.device) -> None:
    """Compare the results of both implementations."""
    for name, arguments in calls:
        on_device = [one.to(device) if isinstance(one, Tensor) else one for one in arguments]
        found, expected = (getattr(module, name)(*on_device) for module in modules)
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
            assert one.shape == other.shape, name
            assert one.dtype == other.dtype, name
            rtol = {torch.bfloat16: 1e-2, torch.float64: 1e-6}.get(one.dtype, 1e-4)
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda m, n=name: n + m)


@pytest.mark.cuda
@pytest.mark.parametrize(("size", "dtype"), cases(SIZES, "more than a block"))
def test_scores_are_those_of_torch(size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    compare(SCORES, score_calls(*size, dtype), device)


@pytest.mark.cuda
def test_sums_over_rows_are_those_of_their_shares(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_launch, "_PROGRAMS", 3)
    compare(SCORES, score_calls(300, 64, torch.float32), device)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_losses_by_score_are_those_of_torch(number: int, dtype: torch.dtype, device: torch.device) -> None:
    compare(SCORES, loss_calls(number, dtype), device)


@pytest.mark.cuda
@pytest.mark.parametrize(("counts", "dtype"), cases(COUNTS, "empty events around others", TYPES[:2]))
def test_losses_by_event_are_those_of_torch(counts: list[int], dtype: torch.dtype, device: torch.device) -> None:
    compare(EVENTS, event_calls(counts, dtype), device)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, by which the interpreter computes
@pytest.mark.parametrize("number", NUMBERS)
def test_single_passes_are_those_of_torch(number: int, device: torch.device) -> None:
    compare(ELEMENTWISE, elementwise_calls(number), device)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_gives_a_loss_that_is_not_finite(value: float, device: torch.device) -> None:
    for modules, calls in (
        (SCORES, loss_calls(9, torch.float32)),
        (SCORES, score_calls(4, 3, torch.float32)),
        (EVENTS, event_calls([2, 3], torch.float32)),
    ):
        for name, (first, *others) in calls:
            if name in ("score", "bounded_loss", "gradient_penalty", "row_scores"):
                first.view(-1)[0] = value
                result, expected = (
                    getattr(module, name)(*(x.to(device) if isinstance(x, Tensor) else x for x in (first, *others)))
                    for module in modules
                )
                results = [(one[0] if isinstance(one, tuple) else one).isfinite().cpu() for one in (result, expected)]
                assert torch.equal(*results), name


@compiles_kernels
def test_the_kernels_compile_for_an_h100(dtype: str) -> None:
    from workloads.base.kernels import elementwise_triton, event_losses_triton, scores_triton

    sizes = {"ROWS": 16, "COLUMNS": 128, "VALUES": 1024}
    rows = {"rows", "projected", "to_rows", "to_projected"}
    for slope, limit in ((False, 0.0), (True, 0.0), (True, 100.0)):
        settings = {**sizes, "SLOPE": slope, "LIMIT": limit, "ROOT": 11.3}
        for kernel in (scores_triton.score_rows, scores_triton.score_backward_rows):
            compile_for_h100(kernel, rows, dtype, settings)
        for kernel in (scores_triton.bounded_loss_values, scores_triton.bounded_loss_slopes):
            compile_for_h100(kernel, (), dtype, {**settings, "NEAR": 0.9})
    integers = dict.fromkeys(("event_of", "counts", "starts", "sizes", "events", "particles"), "*i64")
    settings = {"ROWS": 128, "COLUMNS": 4, "FLOOR": 1e-12, "TIMES": 8}
    for name in ("weighted_squares", "penalty_sums", "penalty_slopes", "score_sets"):
        compile_for_h100(getattr(event_losses_triton, name), (), dtype, settings, others=integers)
    compile_for_h100(elementwise_triton.checked_update_of, (), dtype, sizes)
    compile_for_h100(elementwise_triton.least_spread_of, (), dtype, sizes)
    compile_for_h100(elementwise_triton.log_size_values, (), dtype, sizes, others=integers)
    compile_for_h100(elementwise_triton.long_tail_values, (), dtype, {**sizes, "TAILS": 2, "SCALE": 0.5})
    for key in ("fp32", "bf16") if dtype == "bf16" else ():
        keys = {**integers, "results": "*i64", "keys": f"*{key}"}
        compile_for_h100(elementwise_triton.sort_key_values, (), dtype, sizes, others=keys)
    copies = {**integers, **{f"to_{name}": "*i64" for name in ("event_of", "counts", "starts", "sizes", "particles")}}
    compile_for_h100(elementwise_triton.repeat_segment_values, (), dtype, sizes, others=copies)
