"""Energy scores in C++ against the definition in double precision, with their gradient."""

from __future__ import annotations

import pytest
import torch
from native_layers import compiled, layers_in_cpp
from torch import Tensor

from workloads.base.native.scores import energy_scores, library_for_scores

pytestmark = pytest.mark.process  # a compiler

FLOOR = 1e-12


def by_definition(generated_MRS: Tensor, real_RS: Tensor) -> Tensor:
    times = len(generated_MRS)

    def length(apart: Tensor) -> Tensor:
        return (apart.square().sum(-1) + FLOOR).sqrt()

    pairs = [length(generated_MRS[i] - generated_MRS[j]) for i in range(times) for j in range(times) if i != j]
    return length(generated_MRS - real_RS).mean(0) - torch.stack(pairs).mean(0) / 2


@pytest.mark.parametrize(("times", "rows", "numbers"), [(2, 1, 2), (8, 33, 2), (3, 16, 7), (4, 100, 1), (2, 0, 3)])
def test_scores_and_their_gradient_are_those_of_the_definition(times: int, rows: int, numbers: int) -> None:
    torch.manual_seed(rows)
    generated_MRS, real_RS = torch.randn(times, rows, numbers), torch.randn(rows, numbers)
    generated_MRS[0, : rows // 2] = real_RS[: rows // 2]  # a distance of 0
    found_R, slope_MRS = energy_scores(compiled(), generated_MRS, real_RS, FLOOR)
    exact_MRS = generated_MRS.double().requires_grad_()
    expected_R = by_definition(exact_MRS, real_RS.double())
    torch.testing.assert_close(found_R.double(), expected_R.detach(), rtol=1e-6, atol=1e-6)
    (expected_MRS,) = torch.autograd.grad(expected_R.sum(), exact_MRS)
    torch.testing.assert_close(slope_MRS.double(), expected_MRS, rtol=1e-5, atol=1e-6)


def test_a_value_that_is_not_finite_stays_so_in_its_row_alone() -> None:
    generated_MRS, real_RS = torch.randn(3, 20, 2), torch.randn(20, 2)
    generated_MRS[1, 7, 0] = torch.nan
    found_R, slope_MRS = energy_scores(compiled(), generated_MRS, real_RS, FLOOR)
    assert found_R.isnan().tolist() == [row == 7 for row in range(20)]
    assert slope_MRS.isnan().any(2).any(0).tolist() == [row == 7 for row in range(20)]


def test_rows_of_any_layout_are_read_in_their_order() -> None:
    generated_MRS, real_RS = torch.randn(3, 2, 20).transpose(1, 2), torch.randn(2, 20).t()
    found = energy_scores(compiled(), generated_MRS, real_RS, FLOOR)
    expected = energy_scores(compiled(), generated_MRS.contiguous(), real_RS.contiguous(), FLOOR)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_torch_computes_scores_that_the_library_cannot() -> None:
    values = torch.randn(3, 2)
    assert library_for_scores(values) is None  # not in use
    with layers_in_cpp():
        assert library_for_scores(values) is compiled()
        assert library_for_scores(values.double()) is None
        assert library_for_scores(values.to("meta")) is None
