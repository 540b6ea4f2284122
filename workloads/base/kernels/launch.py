"""Launches of the Triton kernels: sizes of blocks and grids, from numbers that the host knows.

Imports Triton. Shape suffixes: E events, P particles, D width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from workloads.base.kernels import triton_kernels as kernels

_MOST_COLUMNS = 128
"""Columns of a program: with float32 a warp reads lines of 512 bytes."""
_BLOCK = 2048
"""Values that a program reads at once."""
_NO_MAXIMUM, _FIND, _AT_GIVEN = 0, 1, 2


def pool(values_PD: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    """See torch_kernels."""
    return _pooled(values_PD, argmax_ED, *segments, find=False)[0]


def pool_finding_largest(values_PD: Tensor, *segments: Any) -> tuple[Tensor, Tensor]:
    """See torch_kernels. All kinds of pools in one pass over the values."""
    pooled_ED, argmax_ED = _pooled(values_PD, None, *segments, find=True)
    assert argmax_ED is not None
    return pooled_ED, argmax_ED


def unpool(
    slopes_ED: Tensor,
    argmax_ED: Tensor | None,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    pools: str,
) -> Tensor:
    """See torch_kernels."""
    kinds = pools.split("+")
    slopes_ED, num_particles = slopes_ED.contiguous(), event_P.shape[0]
    width = slopes_ED.shape[1] // len(kinds)
    values_PD = slopes_ED.new_empty(num_particles, width)
    if values_PD.numel() == 0:
        return values_PD
    columns = _columns(width)
    rows = min(_BLOCK // columns, 128)
    with _on_device_of(slopes_ED):
        kernels.unpool_rows[triton.cdiv(num_particles, rows), triton.cdiv(width, columns)](
            slopes_ED, argmax_ED, values_PD, event_P, counts_E, num_particles, width,
            **_places(kinds), ACC=_accumulator(slopes_ED), ROWS=rows, COLUMNS=columns,
        )  # fmt: skip
    return values_PD


def _pooled(
    values_PD: Tensor,
    given_ED: Tensor | None,
    event_P: Tensor,
    counts_E: Tensor,
    starts_E: Tensor,
    particles_P: Tensor,
    pools: str,
    *,
    find: bool,
) -> tuple[Tensor, Tensor | None]:
    kinds, values_PD = pools.split("+"), values_PD.contiguous()
    (num_particles, width), num_events = values_PD.shape, counts_E.shape[0]
    pooled_ED = values_PD.new_empty(num_events, width * len(kinds))
    argmax_ED = counts_E.new_empty(num_events, width) if find else None
    if pooled_ED.numel() == 0:
        return pooled_ED, argmax_ED
    columns = _columns(width)
    blocks, events, rows = triton.cdiv(width, columns), min(_BLOCK // 2 // columns, 128), min(_BLOCK // columns, 64)
    # Without enough particles for a long event there are no tiles.
    num_tiles = triton.cdiv(num_particles, kernels.TILE.value) if num_particles > kernels.LONG.value else 0
    acc = torch.float64 if values_PD.dtype == torch.float64 else torch.float32
    sums_TD = values_PD.new_empty(2 * num_tiles, width, dtype=acc)
    largest_TD = torch.empty_like(sums_TD) if find else None
    rows_TD = counts_E.new_empty(2 * num_tiles, width, dtype=torch.int32) if find else None
    mode = _FIND if find else _AT_GIVEN if given_ED is not None else _NO_MAXIMUM
    settings = {"MAX": mode, **_places(kinds), "ACC": _accumulator(values_PD), "ROWS": rows, "COLUMNS": columns}
    with _on_device_of(values_PD):
        kernels.pool_pieces[2 * num_tiles + triton.cdiv(num_events, events), blocks](
            values_PD, given_ED, pooled_ED, argmax_ED, sums_TD, largest_TD, rows_TD, event_P, counts_E, starts_E,
            num_events, num_particles, num_tiles, width, EVENTS=events, **settings,
        )  # fmt: skip
        if num_tiles:
            kernels.combine[num_tiles, blocks](
                pooled_ED, argmax_ED, sums_TD, largest_TD, rows_TD, event_P, counts_E, starts_E,
                num_particles, width, **settings,
            )  # fmt: skip
    return pooled_ED, argmax_ED


def _places(kinds: list[str]) -> dict[str, int]:
    at = {f"{kind.upper()}_AT": kinds.index(kind) if kind in kinds else -1 for kind in ("mean", "sum", "max")}
    return {"NUM": len(kinds), **at}


def _columns(width: int) -> int:
    columns: int = min(triton.next_power_of_2(width), _MOST_COLUMNS)
    return columns


def _accumulator(values: Tensor) -> triton.language.dtype:
    return triton.language.float64 if values.dtype == torch.float64 else triton.language.float32


def _on_device_of(values: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(values.device) if values.is_cuda else nullcontext()
