"""The Triton kernels against torch's, value by value: on CUDA, or on a CPU by Triton's interpreter in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from triton_runs import INTERPRETED, cases, compile_for_h100, compiles_kernels, triton_device

from workloads.base.kernels import launch, torch_kernels
from workloads.base.segments import Segments, pool, unpool

device = triton_device

COUNTS: dict[str, list[int]] = {
    "empty events": [0, 3, 1, 0, 4, 0],
    "no particles": [0, 0, 0],
    "no events": [],
    "a tile and one more or less": [129, 128, 130, 0, 127, 256, 1, 257],
    "many short events": [1, 2, 3, 4, 5, 0] * 25,
    "a short event between long ones in a tile": [200, 3, 300],
}


class Case:
    """Small integers, so that sums are exact in any order, and ties are many."""

    def __init__(self, counts: list[int], width: int, dtype: torch.dtype, device: torch.device) -> None:
        random = torch.Generator().manual_seed(3)
        counts_E = torch.tensor(counts, dtype=torch.int64)
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        self.segments = (segments.event_P, segments.counts_E, segments.starts_E, segments.particles_P)
        self.values_PD = torch.randint(-9, 9, (segments.num_particles, width), generator=random).to(dtype)
        self.slopes_EX = torch.randint(-9, 9, (len(counts), 3 * width), generator=random).to(dtype)
        self.device = device

    def compared(self, name: str, *values: Tensor | None, pools: str) -> tuple[Tensor, ...]:
        """Results of the implementation that CUDA has, on the CPU, after a comparison with those of torch's kernels.

        The latter in float32 or float64: statistics of bf16 are in float32, too.
        """
        on_device = [None if one is None else one.to(self.device) for one in (*values, *self.segments)]
        wide = [None if one is None else one.float() if one.dtype == torch.bfloat16 else one for one in values]
        found = getattr(launch, name)(*on_device, pools)
        expected = getattr(torch_kernels, name)(*wide, *self.segments, pools)
        results = tuple(one.cpu() for one in (found if isinstance(found, tuple) else (found,)))
        for one, other in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            if one.is_floating_point():
                assert one.dtype == self.values_PD.dtype
            tolerance = {"rtol": 1e-5, "atol": 1e-4} if one.dtype == torch.float32 else {}
            torch.testing.assert_close(one, other.to(one.dtype), equal_nan=True, **tolerance)
        return results


@pytest.mark.cuda
@pytest.mark.parametrize(("counts", "dtype"), cases(COUNTS, "a short event between long ones in a tile"))
def test_each_operator_gives_what_it_gives_in_torch(
    counts: list[int], dtype: torch.dtype, device: torch.device
) -> None:
    case = Case(counts, 2, dtype, device)
    _, argmax_ED = case.compared("pool_finding_largest", case.values_PD, pools="mean+max+sum")
    for places, pools in ((None, "sum"), (None, "sum+mean"), (argmax_ED, "max"), (argmax_ED, "max+mean")):
        case.compared("pool", case.values_PD, places, pools=pools)
        case.compared("unpool", case.slopes_EX[:, : 2 * (1 + pools.count("+"))], places, pools=pools)


@pytest.mark.cuda
@pytest.mark.parametrize("width", [1, 3, 130] if INTERPRETED else [1, 3, 16, 128, 130])
def test_columns_of_any_number_are_independent(width: int, device: torch.device) -> None:
    """Of an event of ten thousand particles, too, which is put together from its tiles."""
    case = Case([0, 5, 10_000 if width == 1 else 130, 1], width, torch.float32, device)
    _, argmax_ED = case.compared("pool_finding_largest", case.values_PD, pools="max+mean")
    case.compared("unpool", case.slopes_EX, argmax_ED, pools="sum+max+mean")


@pytest.mark.cuda
def test_of_equal_maxima_the_first_is_found_in_long_events_too(device: torch.device) -> None:
    case = Case([4, 0, 700, 1, 300], 2, torch.float32, device)
    _, argmax_ED = case.compared("pool_finding_largest", torch.ones_like(case.values_PD), pools="max")
    assert argmax_ED[:, 0].tolist() == [0, 0, 4, 704, 705]


@pytest.mark.cuda
@pytest.mark.parametrize("place", [0, 1, 130, 299])
def test_a_nan_counts_as_in_torch(place: int, device: torch.device) -> None:
    case = Case([300, 300], 2, torch.float32, device)
    case.values_PD[place] = torch.nan
    case.compared("pool_finding_largest", case.values_PD, pools="max+sum")


@pytest.mark.cuda
def test_a_sum_has_the_same_bits_each_time(device: torch.device) -> None:
    case = Case([3, 500, 40], 2, torch.float32, device)
    values_PD = torch.randn(543, 2, generator=torch.Generator().manual_seed(1))
    (first,) = case.compared("pool", values_PD, None, pools="sum")
    assert all(torch.equal(case.compared("pool", values_PD, None, pools="sum")[0], first) for _ in range(3))


@pytest.mark.cuda
def test_rows_that_are_not_dense_in_memory_are_read_right(device: torch.device) -> None:
    case = Case([3, 200, 0], 4, torch.float32, device)
    case.compared("pool", case.values_PD.t().contiguous().t(), None, pools="sum")
    case.compared("unpool", case.slopes_EX[:, ::3], None, pools="sum")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_values_and_both_derivatives_on_cuda_are_those_of_the_cpu() -> None:
    results = []
    for device in ("cpu", "cuda"):
        segments = Segments.from_counts(torch.tensor([0, 3, 700, 1, 0], device=device), 704)
        values_PD = torch.randn(704, 5, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_(True)
        pooled_EX = pool(values_PD, segments, ("mean", "max"))
        (slope_PD,) = torch.autograd.grad((pooled_EX**3).sum(), values_PD, create_graph=True)
        (second_PD,) = torch.autograd.grad((slope_PD**2).sum(), values_PD)
        spread_PD = unpool(pooled_EX[:, :5], segments, ("mean",), None)
        results.append([one.detach().cpu() for one in (pooled_EX, slope_PD, second_PD, spread_PD)])
    for on_cpu, on_cuda in zip(*results, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-4, atol=1e-5)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it runs the others")
def test_by_tritons_interpreter_the_tests_of_all_kernels_pass() -> None:
    """In a process, since Triton reads its setting when it is imported."""
    files = sorted(map(str, Path(__file__).parent.glob("test_triton_*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *files]
    command += ["-k", "not on_cuda_are_those_of_the_cpu"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@compiles_kernels
def test_the_kernels_compile_for_an_h100(dtype: str) -> None:
    from workloads.base.kernels import triton_kernels as kernels

    rows = {"values", "pooled", "slopes"}
    integers = dict.fromkeys(("given", "argmax", "event_of", "counts", "starts"), "*i64") | {"part_rows": "*i32"}
    blocks = {"EVENTS": 8, "ROWS": 16, "COLUMNS": 128}
    for mode, unused in ((0, {"given", "argmax", "part_values", "part_rows"}), (1, {"given"}), (2, {"argmax"})):
        pools = {"MAX": mode, "NUM": 2, "MEAN_AT": 0, "SUM_AT": -1 if mode else 1, "MAX_AT": 1 if mode else -1}
        for kernel in (kernels.pool_pieces, kernels.combine, kernels.unpool_rows):
            of_kernel = set() if mode and kernel is kernels.unpool_rows else unused
            compile_for_h100(kernel, rows, dtype, {**blocks, **pools}, of_kernel, integers)
