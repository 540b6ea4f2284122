"""Operators on rows in bfloat16: values against double precision, gradients in float32, registration with torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.kernels.layers import activate, pull
from workloads.base.kernels.product import ROUNDED_PRODUCT

LEAK, EPSILON = 0.2, 1e-5
ROUNDING = 2**-7
"""Of a number of bfloat16, twice: half of it is the rounding of one number."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def rows(num: int, width: int) -> Tensor:
    return (2 * torch.randn(num, width) + 1).bfloat16()


def in_double(*values: Tensor) -> list[Tensor]:
    return [one.detach().double().requires_grad_(one.requires_grad) for one in values]


def near(found: Tensor, expected: Tensor, *, limit: float) -> bool:
    return bool((found.double() - expected).norm() <= limit * expected.norm())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("addend", ["none", "bias", "rows"])
def test_a_product_of_many_rows_has_the_values_and_gradients_of_double_precision(wide: bool, addend: str) -> None:
    input_RA, rounded_DA = rows(5000, 24).requires_grad_(), rows(8, 24)
    weight_DA, bias_D = rounded_DA.float().requires_grad_(), torch.randn(8).bfloat16().float().requires_grad_()
    bias, added = {
        "none": (None, None),
        "bias": (bias_D, bias_D.detach() if wide else bias_D.detach().bfloat16()),
        "rows": (None, rows(5000, 8).requires_grad_()),
    }[addend]
    slope_RD = torch.randn(5000, 8).bfloat16()

    found_RD = ROUNDED_PRODUCT(input_RA, weight_DA, bias, rounded_DA, added, wide)
    trained = [one for one in (input_RA, weight_DA, bias, added) if one is not None and one.requires_grad]
    found = torch.autograd.grad(found_RD, trained, slope_RD.to(found_RD.dtype))

    doubles = dict(zip(map(id, trained), in_double(*trained), strict=True))
    expected_RD = doubles[id(input_RA)] @ doubles[id(weight_DA)].t()
    if addend != "none":
        expected_RD = expected_RD + doubles[id(bias if addend == "bias" else added)]
    expected = torch.autograd.grad(expected_RD, list(doubles.values()), slope_RD.double())
    assert found_RD.dtype == (torch.float32 if wide else torch.bfloat16)
    assert near(found_RD, expected_RD, limit=1e-6 if wide else ROUNDING)
    for value, exact, one in zip(found, expected, trained, strict=True):
        assert value.dtype == one.dtype
        assert near(value, exact, limit=1e-5 if one.dtype == torch.float32 else ROUNDING)


def test_normalisation_and_pullback_have_the_values_and_gradients_of_double_precision() -> None:
    """Of 4,000 rows: sums in bfloat16 were 5 % off."""
    row_RD, slope_RD, of_pulled_RD, of_output_RD = (rows(4000, 64) for _ in range(4))
    row_RD.requires_grad_()
    slope_RD.requires_grad_()
    norm = nn.LayerNorm(64, EPSILON)
    norm.weight.data, norm.bias.data = 1 + 0.2 * torch.randn(64), 0.1 * torch.randn(64)

    output_RD, normal = activate(row_RD, None, norm, LEAK)
    assert normal is not None
    pulled_RD = pull(slope_RD, output_RD.detach(), normal, LEAK)
    trained = [row_RD, slope_RD, *norm.parameters()]
    found = torch.autograd.grad([output_RD, pulled_RD], trained, [of_output_RD, of_pulled_RD])

    doubles = in_double(*trained)
    row, slope, scale, shift = doubles
    output = F.leaky_relu(F.layer_norm(row, [64], scale, shift, EPSILON), LEAK)
    (pulled,) = torch.autograd.grad(output, row, slope, create_graph=True)
    expected = torch.autograd.grad([output, pulled], doubles, [of_output_RD.double(), of_pulled_RD.double()])
    assert normal.mean_R1.dtype == normal.inverse_R1.dtype == torch.float32
    torch.testing.assert_close(normal.mean_R1, row.detach().mean(1, keepdim=True).float(), rtol=1e-4, atol=1e-5)
    for value, exact in ((output_RD, output), (pulled_RD, pulled), *zip(found, expected, strict=True)):
        assert near(value, exact, limit=ROUNDING)
    for value, one, exact in zip(found, trained, expected, strict=True):
        assert value.dtype == one.dtype
        if one.dtype == torch.float32:
            assert near(value, exact, limit=ROUNDING / 4)


def calls(trained: bool) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    row_RD = rows(6, 8).requires_grad_(trained)
    weight_DA = torch.randn(8, 8).requires_grad_(trained)
    added_D, shift_D = torch.randn(8), torch.randn(8).requires_grad_(trained)
    rounded_DA = weight_DA.detach().bfloat16()
    return {
        "product": (ROUNDED_PRODUCT, (row_RD, weight_DA, shift_D, rounded_DA, added_D.bfloat16(), False)),
        "wide product": (ROUNDED_PRODUCT, (row_RD, weight_DA, shift_D, rounded_DA, added_D, True)),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's tracing warns of itself
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "constant"])
@pytest.mark.parametrize("name", ["product", "wide product"])
def test_torch_finds_no_fault_in_an_operator(name: str, trained: bool) -> None:
    operator, arguments = calls(trained)[name]
    torch.library.opcheck(operator, arguments, rtol=0.02, atol=0.05)
