"""Registration of operators with torch, below Python's wrappers: see operators.py, which says why.

| key | implementation |
| --- | --- |
| CPU | a module of torch's own operations |
| CUDA | a module that launches Triton's kernels where Triton can work, else that of the CPU, and the log says why |
| Autograd | `torch.autograd.Function` over the keys below, whose backward pass is a registered operator as well |
| shapes alone | a function that allocates the results |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from workloads.base.compiler import missing_for_triton

LOG = logging.getLogger(__name__)

LIBRARY = torch.library.Library("icestream", "DEF")
ON_CPU: dict[str, Callable[..., Any]] = {}
"""Implementation in torch's own operations, by the operator's name."""
LIKE: dict[str, Callable[..., Any]] = {}
"""Function that allocates the results, likewise. benchmarks/bench_operators.py measures with it."""

_BelowAutograd = torch._C._AutoDispatchBelowAutograd

Backward = Callable[[Tensor, Sequence[Any], Sequence[Tensor], Sequence[bool]], Sequence[Tensor | None]]
"""Gradients of the arguments, from that of the first result, the arguments, the results, and which are needed. Further
arguments have none."""


@cache
def uses_triton() -> bool:
    """True if Triton can work, asked at the first call on CUDA; if it can't, the log says why."""
    if missing := missing_for_triton():
        LOG.warning("operators on CUDA: torch's kernels, slow for long events, instead of Triton's; %s", missing)
        return False
    return True


def on_cuda(name: str, kernels: ModuleType, launches: str) -> Callable[..., Any]:
    """Implementation on CUDA: of the module ``launches``, imported at the first call, since Triton takes a second."""

    @cache
    def chosen() -> Any:
        return getattr(import_module(launches) if uses_triton() else kernels, name)

    return lambda *arguments: chosen()(*arguments)


def register(
    schema: str,
    kernels: ModuleType,
    launches: str,
    like: Callable[..., Any],
    *,
    plain: Callable[..., Any] | None = None,
    backward: Backward | None = None,
) -> Any:
    """Register an operator by its schema; the result is what calls it.

    ``kernels``: module with its implementation on the CPU, ``launches``: name of that on CUDA, ``like``: allocates the
    results. ``backward`` gives the gradients by its first result. ``plain`` is the same operator in torch's own
    operations, and is differentiated where a derivative of the gradients is asked for; without it, that is an error.
    """
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.icestream, name).default
    LIKE[name], ON_CPU[name] = like, getattr(kernels, name)
    LIBRARY.impl(name, ON_CPU[name], "CPU")
    LIBRARY.impl(name, on_cuda(name, kernels, launches), "CUDA")
    torch.library.register_fake(f"icestream::{name}", like, lib=LIBRARY)
    if backward is not None:
        LIBRARY.impl(name, _differentiable(operator, plain, backward), "Autograd")
    return operator


def _differentiable(operator: Any, plain: Callable[..., Any] | None, backward: Backward) -> Callable[..., Any]:
    """Implementation for the key Autograd."""

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            with _BelowAutograd():
                results = operator(*arguments)
            several = results if isinstance(results, tuple) else (results,)
            ctx.save_for_backward(*(one for one in arguments if isinstance(one, Tensor)), *several)
            ctx.others = [None if isinstance(one, Tensor) else (one,) for one in arguments]
            ctx.mark_non_differentiable(*several[1:])
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            num, gradient = len(ctx.others), gradients[0]
            if gradient is None:
                return (None,) * num
            saved = iter(ctx.saved_tensors)
            arguments = [next(saved) if one is None else one[0] for one in ctx.others]
            if torch.is_grad_enabled():
                if plain is None:
                    raise RuntimeError(f"{operator} can be differentiated once only")
                return _of_plain(plain, gradient, arguments, ctx.needs_input_grad)
            found = tuple(backward(gradient, arguments, tuple(saved), ctx.needs_input_grad))
            return found + (None,) * (num - len(found))

    # Without the questions for torch.func's transforms, which these operators don't take: a tenth of a call's time.
    apply = super(torch.autograd.Function, Differentiable).apply

    def call(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            for one in arguments:
                if isinstance(one, Tensor) and one.requires_grad:
                    return apply(*arguments)
        with _BelowAutograd():
            return operator(*arguments)

    return call


def _of_plain(
    plain: Callable[..., Any], gradient: Tensor, arguments: list[Any], needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Differentiable gradients of the arguments, by torch's own derivative of ``plain``."""
    results = plain(*arguments)
    result = results[0] if isinstance(results, tuple) else results
    inputs = [one for one, is_needed in zip(arguments, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(result, inputs, gradient, create_graph=True, allow_unused=True))
    return tuple(next(found) if is_needed else None for is_needed in needed)
