"""Registration of operators with torch, below Python's wrappers: `torch.library.custom_op` takes 10 µs a call, and more
for its derivative.

| key | implementation |
| --- | --- |
| CPU | a module of torch's own operations |
| CUDA | that of the CPU, or a module that launches Triton's kernels where Triton can work; if not, the log says why |
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
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

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
    like: Callable[..., Any],
    *,
    launches: str = "",
    backward: Backward | None = None,
    is_linear: bool = False,
    traced: Callable[..., Any] | None = None,
) -> Any:
    """Register an operator by its schema; the result is what calls it.

    ``kernels``: module with its implementation on the CPU, ``launches``: name of that on CUDA, empty for the same one,
    ``like``: allocates the results. ``backward`` gives the gradients by its first result. ``is_linear``: that is linear
    in the first argument, and ``backward``, which gets neither of them, can be differentiated again; else that is an
    error. ``traced`` is the same operator in torch's own operations, which takes its place while a graph is traced: a
    compiler fuses them.
    """
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.icestream, name).default
    LIKE[name], ON_CPU[name] = like, getattr(kernels, name)
    LIBRARY.impl(name, ON_CPU[name], "CPU")
    LIBRARY.impl(name, on_cuda(name, kernels, launches) if launches else ON_CPU[name], "CUDA")
    torch.library.register_fake(f"icestream::{name}", like, lib=LIBRARY)
    if backward is not None:
        LIBRARY.impl(name, _differentiable(operator, backward, is_linear, traced or operator), "Autograd")
    return operator


def _differentiable(
    operator: Any, backward: Backward, is_linear: bool, traced: Callable[..., Any]
) -> Callable[..., Any]:
    """Implementation for the key Autograd."""

    def compute(*arguments: Any) -> Any:
        with _BelowAutograd():
            return (traced if _is_traced() else operator)(*arguments)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            results = compute(*arguments)
            several = results if isinstance(results, tuple) else (results,)
            ctx.mark_non_differentiable(*several[1:])
            ctx.set_materialize_grads(False)
            if is_linear:
                arguments, several = (None, *arguments[1:]), (None, *several[1:])
            ctx.save_for_backward(*(one for one in (*arguments, *several) if isinstance(one, Tensor)))
            ctx.others = [None if isinstance(one, Tensor) else (one,) for one in (*arguments, *several)]
            ctx.num_arguments = len(arguments)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            num: int = ctx.num_arguments
            gradient = gradients[0]
            if gradient is None:
                return (None,) * num
            if torch.is_grad_enabled() and not is_linear:
                raise RuntimeError(f"{operator} can be differentiated once only")
            saved = iter(ctx.saved_tensors)
            values = [next(saved) if one is None else one[0] for one in ctx.others]
            found = tuple(backward(gradient, values[:num], values[num:], ctx.needs_input_grad))
            return found + (None,) * (num - len(found))

    # Without the questions for torch.func's transforms, which these operators don't take: a tenth of a call's time.
    apply = super(torch.autograd.Function, Differentiable).apply

    def call(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            for one in arguments:
                if isinstance(one, Tensor) and one.requires_grad:
                    return apply(*arguments)
        return compute(*arguments)

    return call


def _is_traced() -> bool:
    """True in modes of torch's own, which trace a graph; one of ours, which counts operators, sees each as it is."""
    return is_in_torch_dispatch_mode() and not is_in_torch_dispatch_mode(include_infra_modes=False)
