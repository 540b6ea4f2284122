"""Segment operators registered with torch: `torch.ops.icestream.pool`, `pool_finding_largest` and `unpool`.

Their derivatives are each other, so that each can be differentiated any number of times. Registered below Python's
wrappers (`torch.library.custom_op` takes 10 µs a call and more for its derivative), with Python functions for each
dispatch key:

| key | implementation |
| --- | --- |
| CPU | torch_kernels |
| CUDA | Triton where it can work, else torch_kernels: said once, with the reason |
| Autograd | `torch.autograd.Function` over the keys below |
| shapes alone | `_like…` |

While a graph is traced, `unpool` is taken apart into reads, which a compiler fuses with what follows.

Shape suffixes: E events, P particles, D width. Arguments of each after its first: places of the maxima (or none),
the four tensors of `Segments`, and the pools by name, joined by "+".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from workloads.base.kernels import torch_kernels
from workloads.base.kernels.registration import LIBRARY, LIKE, ON_CPU, on_cuda

NAMES = ("pool", "pool_finding_largest", "unpool")
_SEGMENTS = "Tensor event_P, Tensor counts_E, Tensor starts_E, Tensor particles_P, str pools"

LIBRARY.define(f"pool(Tensor values_PD, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor")
LIBRARY.define(f"pool_finding_largest(Tensor values_PD, {_SEGMENTS}) -> (Tensor, Tensor)")
LIBRARY.define(f"unpool(Tensor slopes_ED, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor")

POOL = torch.ops.icestream.pool.default
POOL_FINDING_LARGEST = torch.ops.icestream.pool_finding_largest.default
UNPOOL = torch.ops.icestream.unpool.default

_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def _pool(*arguments: Any) -> Tensor:
    with _BelowAutograd():
        pooled_ED: Tensor = POOL(*arguments)
    return pooled_ED


def _pool_finding_largest(*arguments: Any) -> tuple[Tensor, Tensor]:
    with _BelowAutograd():
        pooled_ED, argmax_ED = POOL_FINDING_LARGEST(*arguments)
    return pooled_ED, argmax_ED


def _unpool(*arguments: Any) -> Tensor:
    # Modes of torch's own trace a graph; one of ours, which counts operators, sees this one as it is.
    is_traced = is_in_torch_dispatch_mode() and not is_in_torch_dispatch_mode(include_infra_modes=False)
    with _BelowAutograd():
        slopes_PD: Tensor = torch_kernels.unpool_by_reading(*arguments) if is_traced else UNPOOL(*arguments)
    return slopes_PD


class _Pool(torch.autograd.Function):
    """Pooling: linear for given places of the maxima, as is its transpose."""

    @staticmethod
    def forward(ctx: Any, values_PD: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
        ctx.save_for_backward(argmax_ED, *segments[:-1])
        ctx.pools = segments[-1]
        return _pool(values_PD, argmax_ED, *segments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return UNPOOL(gradients[0], *ctx.saved_tensors, ctx.pools), None, None, None, None, None, None


class _PoolFindingLargest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_PD: Tensor, *segments: Any) -> tuple[Tensor, Tensor]:
        pooled_ED, argmax_ED = _pool_finding_largest(values_PD, *segments)
        ctx.mark_non_differentiable(argmax_ED)
        ctx.save_for_backward(argmax_ED, *segments[:-1])
        ctx.pools = segments[-1]
        return pooled_ED, argmax_ED

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return UNPOOL(gradients[0], *ctx.saved_tensors, ctx.pools), None, None, None, None, None


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slopes_ED: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
        ctx.save_for_backward(argmax_ED, *segments[:-1])
        ctx.pools = segments[-1]
        return _unpool(slopes_ED, argmax_ED, *segments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return POOL(gradients[0], *ctx.saved_tensors, ctx.pools), None, None, None, None, None, None


def _differentiable(function: type[torch.autograd.Function], constant: Callable[..., Any]) -> Callable[..., Any]:
    """Implementation for the key Autograd. ``constant``: the operator for values without a gradient."""
    apply = function.apply

    def call(values: Tensor, *others: Any) -> Any:
        is_trained = values.requires_grad and torch.is_grad_enabled()
        return apply(values, *others) if is_trained else constant(values, *others)

    return call


def _like_pool(values_PD: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return values_PD.new_empty(segments[1].shape[0], values_PD.shape[1] * num_pools)


def _like_pool_finding_largest(values_PD: Tensor, *segments: Any) -> tuple[Tensor, Tensor]:
    argmax_ED = values_PD.new_empty(segments[1].shape[0], values_PD.shape[1], dtype=torch.int64)
    return _like_pool(values_PD, None, *segments), argmax_ED


def _like_unpool(slopes_ED: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return slopes_ED.new_empty(segments[0].shape[0], slopes_ED.shape[1] // num_pools)


for _name in NAMES:
    LIBRARY.impl(_name, getattr(torch_kernels, _name), "CPU")
    LIBRARY.impl(_name, on_cuda(_name, torch_kernels, "workloads.base.kernels.launch"), "CUDA")
LIBRARY.impl("pool", _differentiable(_Pool, _pool), "Autograd")
LIBRARY.impl("pool_finding_largest", _differentiable(_PoolFindingLargest, _pool_finding_largest), "Autograd")
LIBRARY.impl("unpool", _differentiable(_Unpool, _unpool), "Autograd")
for _name, _like in (
    ("pool", _like_pool),
    ("pool_finding_largest", _like_pool_finding_largest),
    ("unpool", _like_unpool),
):
    LIKE[_name], ON_CPU[_name] = _like, getattr(torch_kernels, _name)
    torch.library.register_fake(f"icestream::{_name}", _like, lib=LIBRARY)
