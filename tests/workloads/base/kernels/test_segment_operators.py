"""Registration of the segment operators with torch: schema, shapes for tracing, derivatives."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from workloads.base.kernels import launch, operators
from workloads.base.kernels.operators import POOL, POOL_FINDING_LARGEST, UNPOOL, on_cuda, uses_triton
from workloads.base.segments import Segments, pool_with_argmax, unpool

COUNTS = torch.tensor([0, 3, 1, 0, 4, 0])
SEGMENTS = Segments.from_counts(COUNTS, 8)
TENSORS = (SEGMENTS.event_P, SEGMENTS.counts_E, SEGMENTS.starts_E, SEGMENTS.particles_P)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
NAMES = ("pool", "pool_finding_largest", "unpool")


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def calls(dtype: torch.dtype) -> dict[str, list[tuple[Any, tuple[Any, ...]]]]:
    """Calls of each operator: with and without a maximum."""
    values_PD, slopes_ED = random(8, 3, dtype=dtype), random(6, 6, dtype=dtype)
    _, argmax_ED = pool_with_argmax(values_PD, SEGMENTS, ("max",))
    return {
        "pool": [(POOL, (values_PD, None, *TENSORS, "mean+sum")), (POOL, (values_PD, argmax_ED, *TENSORS, "mean+max"))],
        "pool_finding_largest": [(POOL_FINDING_LARGEST, (values_PD, *TENSORS, "mean+max"))],
        "unpool": [
            (UNPOOL, (slopes_ED, None, *TENSORS, "mean+sum")),
            (UNPOOL, (slopes_ED, argmax_ED, *TENSORS, "mean+max")),
        ],
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's tracing warns of itself
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "constant"])
def test_torch_finds_no_fault_in_an_operator(name: str, dtype: torch.dtype, trained: bool) -> None:
    for operator, (values, *others) in calls(dtype)[name]:
        torch.library.opcheck(operator, (values.requires_grad_(trained), *others))


def test_traced_unpooling_has_the_same_bits_and_adds_to_no_place_in_any_order() -> None:
    _, argmax_ED = pool_with_argmax(random(8, 3, dtype=torch.float32), SEGMENTS, ("max",))
    for pools in (("mean",), ("max",), ("mean", "max"), ("max", "sum")):
        slopes_ED = random(6, 3 * len(pools), dtype=torch.float32)
        traced = make_fx(partial(unpool, segments=SEGMENTS, pools=pools, argmax_ED=argmax_ED))(slopes_ED)
        names = {str(node.target) for node in traced.graph.nodes}
        assert "aten.index_select.default" in names
        assert not any("scatter" in name or "icestream" in name for name in names)
        assert torch.equal(traced(slopes_ED), unpool(slopes_ED, SEGMENTS, pools, argmax_ED))


def test_cuda_without_triton_uses_torch_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workloads.base.compiler.find_spec", lambda name: None)
    uses_triton.cache_clear()
    pool_on_cuda, unpool_on_cuda = (on_cuda(name) for name in ("pool", "unpool"))
    values_PD = random(8, 3, dtype=torch.float32)

    with caplog.at_level(logging.WARNING):
        pooled_ED = pool_on_cuda(values_PD, None, *TENSORS, "mean")
        unpool_on_cuda(pooled_ED, None, *TENSORS, "mean")
    uses_triton.cache_clear()

    assert torch.equal(pooled_ED, POOL(values_PD, None, *TENSORS, "mean"))
    (record,) = caplog.records
    assert "torch's kernels" in record.message
    assert "install torch with CUDA" in record.message


def test_cuda_with_triton_uses_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "missing_for_triton", lambda: "")
    monkeypatch.setattr(launch, "pool", lambda *arguments: arguments)
    uses_triton.cache_clear()
    found = on_cuda("pool")(1, "mean")
    uses_triton.cache_clear()
    assert found == (1, "mean")
