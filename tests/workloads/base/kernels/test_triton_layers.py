"""The Triton kernels of a dense layer against torch's, value by value: as test_triton_kernels.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_cases import EPSILON, LEAK, SIZES, LayerCase
from torch import Tensor
from triton_runs import cases, compile_for_h100, compiles_kernels, triton_device

from workloads.base.kernels import layers_launch, layers_torch

device = triton_device


def assert_same(name: str, *arguments: Any) -> Any:
    """Compare an operator's results; those of torch."""
    found, expected = (getattr(module, name)(*arguments) for module in (layers_launch, layers_torch))
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        # A value of bfloat16 is rounded once from float32, so that it may be one step apart; sums are in float32.
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if one.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)
    return expected


def compare_all(case: LayerCase, *, norm: bool) -> None:
    """Compare all operators on a case."""
    output_RD, *statistics = assert_same("activate", *case.activated(norm=norm), EPSILON, LEAK)
    layer = (output_RD, *((case.linear_RD, *statistics, case.scale_D) if norm else (None,) * 4))
    r_RD = assert_same("pull", case.gradient_RD, *layer, LEAK)
    assert_same("pull_with_sums", case.gradient_RD, *layer, LEAK)
    assert_same("pull_backward", case.s_RD, case.gradient_RD, *layer, r_RD, LEAK)


@pytest.mark.cuda
@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
@pytest.mark.parametrize(("size", "dtype"), cases(SIZES, "rows that are no multiple of a block"))
def test_each_operator_gives_what_it_gives_in_torch(
    size: tuple[int, int], dtype: torch.dtype, norm: bool, device: torch.device
) -> None:
    compare_all(LayerCase.of(*size, dtype, device), norm=norm)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, by which the interpreter computes
@pytest.mark.parametrize("norm", [True, False], ids=["normalised", "plain"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_is_not_finite_stays_in_its_row_and_in_the_sums(value: float, norm: bool, device: torch.device) -> None:
    case = LayerCase.of(6, 4, torch.float32, device)
    case.linear_RD[2, 1] = value
    case.gradient_RD[4, 0] = value
    output_RD, *statistics = layers_launch.activate(*case.activated(norm=norm), EPSILON, LEAK)
    expected_RD = layers_torch.activate(*case.activated(norm=norm), EPSILON, LEAK)[0]
    assert torch.equal(output_RD.isfinite(), expected_RD.isfinite())
    layer = (output_RD, *((case.linear_RD, *statistics, case.scale_D) if norm else (None,) * 4))
    for name in ("pull", "pull_with_sums"):
        results = getattr(layers_launch, name)(case.gradient_RD, *layer, LEAK)
        found_RD = results if isinstance(results, Tensor) else results[0]
        finite_R = found_RD.isfinite().all(1)
        assert finite_R.tolist() == [True, True, not norm, True, False, True]
        assert isinstance(results, Tensor) or not results[1].isfinite().all()


@pytest.mark.cuda
def test_sums_over_many_rows_are_those_of_their_shares_and_the_same_each_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_launch, "_PROGRAMS", 3)
    case = LayerCase.of(700, 32, torch.float32, device)
    compare_all(case, norm=True)
    layer = (*layers_torch.activate(*case.activated(norm=True), EPSILON, LEAK), case.scale_D)
    arguments = (case.gradient_RD, layer[0], case.linear_RD, *layer[1:], LEAK)
    first = layers_launch.pull_with_sums(*arguments)
    assert all(
        torch.equal(one, other) for one, other in zip(first, layers_launch.pull_with_sums(*arguments), strict=True)
    )


@pytest.mark.cuda
def test_rows_that_are_not_dense_in_memory_are_read_right(device: torch.device) -> None:
    case = LayerCase.of(12, 8, torch.float32, device)
    for name in ("linear_RD", "gradient_RD", "s_RD"):
        setattr(case, name, getattr(case, name).t().contiguous().t())
    compare_all(case, norm=True)
    compare_all(case, norm=False)


@pytest.mark.cuda
def test_rows_too_long_for_a_program_are_computed_by_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_launch, "_MOST_COLUMNS", 4)
    monkeypatch.setattr(layers_launch, "kernels", None)
    compare_all(LayerCase.of(3, 5, torch.float32, device), norm=True)


@compiles_kernels
def test_the_kernels_compile_for_an_h100(dtype: str) -> None:
    from workloads.base.kernels import layers_triton as kernels

    rows = {"linear", "output", "gradients", "pulled", "slopes", "to_gradients", "to_linear"}
    for norm in (True, False):
        for kernel in (kernels.activate_rows, kernels.pull_rows, *([kernels.pull_backward_rows] if norm else [])):
            for sums in (True, False) if kernel is kernels.pull_rows else (True,):
                unused = () if norm else ("scale", "shift", "means", "inverses")
                unused += () if norm or kernel is kernels.activate_rows else ("linear",)
                settings = {"NORM": norm, "SUMS": sums, "EPSILON": EPSILON, "LEAK": LEAK, "ROWS": 16, "COLUMNS": 128}
                compile_for_h100(kernel, rows, dtype, settings, unused)
