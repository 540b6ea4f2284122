"""Floating-point operations of a step, counted while it runs: those of matrix products, in all of its threads.

Anything else (norms, activations, sums over an event) is limited by memory, and counts nothing. Layers in C++
(`workloads/base/native`), which are no operators of torch, call `count_products`.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Result = TypeVar("Result")


class FlopCount:
    """Sum over all threads that count into it."""

    def __init__(self) -> None:
        self.flops = 0
        self._lock = threading.Lock()

    def add(self, flops: int) -> None:
        """Add the operations of one operator."""
        with self._lock:
            self.flops += flops


_active: FlopCount | None = None
"""The count of the running step; one process trains one model."""


@contextmanager
def counted_flops() -> Iterator[FlopCount]:
    """Context whose operators are counted. Compiled functions run as they are written: they are compiled later."""
    global _active
    _active = count = FlopCount()
    try:
        # Without torch's compiler, whose import takes a trainer three seconds and 70 MB, nothing is compiled.
        is_loaded = "torch._dynamo" in sys.modules
        with torch.compiler.set_stance("force_eager") if is_loaded else nullcontext(), _Counter(count):
            yield count
    finally:
        _active = None


def count_products(*products: tuple[int, ...]) -> None:
    """Count matrix products that torch does not see: (rows, terms, columns) of each."""
    if _active is not None:
        _active.add(sum(2 * math.prod(sizes) for sizes in products))


def for_other_threads(compute: Callable[..., Result]) -> Callable[..., Result]:
    """``compute``, counted in whatever thread it runs if the caller is: torch counts the operators of one thread."""
    count = _active
    if count is None:
        return compute

    def counted(*arguments: Any) -> Result:
        with _Counter(count):
            return compute(*arguments)

    return counted


class _Counter(TorchDispatchMode):
    """Mode that counts each operator of its thread, and of the threads of the backward pass that this one waits for."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this torch imports its compiler at the first operator, to keep it away from here."""
        return False

    def __init__(self, count: FlopCount) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))  # torch.cond, for example, has none
        if formula is not None and not types:  # shapes of subclasses, nested tensors for example, are no numbers
            self._count.add(int(formula(*args, **(kwargs or {}), out_val=result)))
        return result
