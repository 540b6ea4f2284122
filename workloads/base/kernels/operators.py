"""Segment operators registered with torch: `torch.ops.icestream.pool`, `pool_finding_largest` and `unpool`.

Their derivatives are each other, so that each can be differentiated any number of times. While a graph is traced,
`unpool` is taken apart into reads, which a compiler fuses with what follows. They are registered below Python's
wrappers: `torch.library.custom_op` takes 10 µs a call, and more for its derivative.

| key | implementation |
| --- | --- |
| CPU | torch's own operations (`torch_kernels`) |
| CUDA | Triton's kernels (`launch`) where Triton can work, else that of the CPU, and the log says why |
| Autograd | `torch.autograd.Function` over the keys below, whose backward pass is a registered operator as well |
| shapes alone | a function that allocates the results |

Shape suffixes: E events, P particles, D width. Arguments of each after its first: places of the maxima (or none),
the four tensors of `Segments`, and the pools by name, joined by "+".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from workloads.base.compiler import missing_for_triton
from workloads.base.kernels import torch_kernels

LOG = logging.getLogger(__name__)

LIBRARY = torch.library.Library("icestream", "DEF")
ON_CPU: dict[str, Callable[..., Any]] = {}
"""Implementation in torch's own operations, by the operator's name."""
LIKE: dict[str, Callable[..., Any]] = {}
"""Function that allocates the results, likewise. benchmarks/bench_operators.py measures with it."""

_SEGMENTS = "Tensor event_P, Tensor counts_E, Tensor starts_E, Tensor particles_P, str pools"
_BelowAutograd = torch._C._AutoDispatchBelowAutograd

Backward = Callable[[Tensor, Sequence[Any], Sequence[Any]], Tensor]
"""Gradient of the first argument, from that of the first result, the arguments and the results, both without the first
one. Further arguments have none."""


@cache
def uses_triton() -> bool:
    """True if Triton can work, asked at the first call on CUDA; if it can't, the log says why."""
    if missing := missing_for_triton():
        LOG.warning("operators on CUDA: torch's kernels, slow for long events, instead of Triton's; %s", missing)
        return False
    return True


def on_cuda(name: str) -> Callable[..., Any]:
    """Implementation on CUDA. Its launches are imported at the first call, since Triton takes a second."""

    @cache
    def chosen() -> Any:
        return getattr(import_module("workloads.base.kernels.launch") if uses_triton() else torch_kernels, name)

    return lambda *arguments: chosen()(*arguments)


def _register(
    schema: str, like: Callable[..., Any], backward: Backward, traced: Callable[..., Any] | None = None
) -> Any:
    """Register an operator that is linear in its first argument, by its schema; the result is what calls it.

    ``like`` allocates the results. ``traced`` is the same operator in torch's own operations, which takes its place
    while a graph is traced: a compiler fuses them.
    """
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.icestream, name).default
    LIKE[name], ON_CPU[name] = like, getattr(torch_kernels, name)
    LIBRARY.impl(name, ON_CPU[name], "CPU")
    LIBRARY.impl(name, on_cuda(name), "CUDA")
    torch.library.register_fake(f"icestream::{name}", like, lib=LIBRARY)
    LIBRARY.impl(name, _differentiable(operator, backward, traced or operator), "Autograd")
    return operator


def _differentiable(operator: Any, backward: Backward, traced: Callable[..., Any]) -> Callable[..., Any]:
    """Implementation for the key Autograd."""

    def compute(*arguments: Any) -> Any:
        with _BelowAutograd():
            return (traced if _is_traced() else operator)(*arguments)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            results = compute(*arguments)
            more = results[1:] if isinstance(results, tuple) else ()
            ctx.mark_non_differentiable(*more)
            ctx.set_materialize_grads(False)
            kept = (*arguments[1:], *more)
            ctx.save_for_backward(*(one for one in kept if isinstance(one, Tensor)))
            ctx.others = [None if isinstance(one, Tensor) else (one,) for one in kept]
            ctx.num_arguments = len(arguments)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            num: int = ctx.num_arguments
            if gradients[0] is None:
                return (None,) * num
            saved = iter(ctx.saved_tensors)
            values = [next(saved) if one is None else one[0] for one in ctx.others]
            return backward(gradients[0], values[: num - 1], values[num - 1 :]), *(None,) * (num - 1)

    # Without the questions for torch.func's transforms, which these operators don't take: a tenth of a call's time.
    apply = super(torch.autograd.Function, Differentiable).apply

    def call(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and arguments[0].requires_grad:
            return apply(*arguments)
        return compute(*arguments)

    return call


def _is_traced() -> bool:
    """True in modes of torch's own, which trace a graph; one of ours, which counts operators, sees each as it is."""
    return is_in_torch_dispatch_mode() and not is_in_torch_dispatch_mode(include_infra_modes=False)


def _like_pool(values_PD: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return values_PD.new_empty(segments[1].shape[0], values_PD.shape[1] * num_pools)


def _like_pool_finding_largest(values_PD: Tensor, *segments: Any) -> tuple[Tensor, Tensor]:
    argmax_ED = values_PD.new_empty(segments[1].shape[0], values_PD.shape[1], dtype=torch.int64)
    return _like_pool(values_PD, None, *segments), argmax_ED


def _like_unpool(slopes_ED: Tensor, argmax_ED: Tensor | None, *segments: Any) -> Tensor:
    num_pools = segments[-1].count("+") + 1
    return slopes_ED.new_empty(segments[0].shape[0], slopes_ED.shape[1] // num_pools)


POOL: Any = _register(
    f"pool(Tensor values_PD, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor",
    _like_pool,
    lambda gradient_ED, others, _: UNPOOL(gradient_ED, *others),
)
POOL_FINDING_LARGEST = _register(
    f"pool_finding_largest(Tensor values_PD, {_SEGMENTS}) -> (Tensor, Tensor)",
    _like_pool_finding_largest,
    lambda gradient_ED, others, results: UNPOOL(gradient_ED, *results, *others),
)
UNPOOL: Any = _register(
    f"unpool(Tensor slopes_ED, Tensor? argmax_ED, {_SEGMENTS}) -> Tensor",
    _like_unpool,
    lambda gradient_PD, others, _: POOL(gradient_PD, *others),
    traced=torch_kernels.unpool_by_reading,
)
