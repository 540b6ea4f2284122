"""Segment operators registered with torch: `torch.ops.icestream.pool`, `pool_finding_largest` and `unpool`.

Their derivatives are each other, so that each can be differentiated any number of times. While a graph is traced,
`unpool` is taken apart into reads, which a compiler fuses with what follows.

Shape suffixes: E events, P particles, D width. Arguments of each after its first: places of the maxima (or none),
the four tensors of `Segments`, and the pools by name, joined by "+".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base.kernels import torch_kernels as kernels
from workloads.base.kernels.registration import register

_LAUNCHES = "workloads.base.kernels.launch"
_SEGMENTS = "Tensor event_P, Tensor counts_E, Tensor starts_E, Tensor particles_P, str pools"


def _like_pool(values_PD: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return values_PD.new_empty(segments[1].shape[0], values_PD.shape[1] * num_pools)


def _like_pool_finding_largest(values_PD: Tensor, *segments: Any) -> tuple[Tensor, Tensor]:
    argmax_ED = values_PD.new_empty(segments[1].shape[0], values_PD.shape[1], dtype=torch.int64)
    return _like_pool(values_PD, None, *segments), argmax_ED


def _like_unpool(slopes_ED: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return slopes_ED.new_empty(segments[0].shape[0], slopes_ED.shape[1] // num_pools)


POOL: Any = register(
    f"pool(Tensor values_PD, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor",
    *(kernels, _like_pool),
    launches=_LAUNCHES,
    backward=lambda gradient_ED, arguments, *_: [UNPOOL(gradient_ED, *arguments[1:])],
    is_linear=True,
)
POOL_FINDING_LARGEST = register(
    f"pool_finding_largest(Tensor values_PD, {_SEGMENTS}) -> (Tensor, Tensor)",
    *(kernels, _like_pool_finding_largest),
    launches=_LAUNCHES,
    backward=lambda gradient_ED, arguments, results, _: [UNPOOL(gradient_ED, results[1], *arguments[1:])],
    is_linear=True,
)
UNPOOL: Any = register(
    f"unpool(Tensor slopes_ED, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor",
    *(kernels, _like_unpool),
    launches=_LAUNCHES,
    backward=lambda gradient_PD, arguments, *_: [POOL(gradient_PD, *arguments[1:])],
    is_linear=True,
    traced=kernels.unpool_by_reading,
)
