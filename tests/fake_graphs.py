"""Runtime of graphs without CUDA, which does on the CPU what a graph does: the recorded operators again, on the memory
of the recording. What Python decides while it is recorded stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.base.graphs import CudaRuntime, Recorded

Result = TypeVar("Result")


class FakeRuntime(CudaRuntime):
    """Before its first replay, a recording's results are garbage."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0
        self.broken: RuntimeError | None = None

    def record(self, compute: Callable[[], Result]) -> Recorded[Result]:
        if self.broken:
            raise self.broken
        self.recorded += 1
        expected = compute()
        with _Recorder() as recorder:
            result = compute()
        for own in tree_leaves(result):
            own.fill_(-7)

        @torch.no_grad()
        def replay() -> None:
            self.replayed += 1
            for function, args, kwargs, written in recorder.calls:
                for own, new in zip(written, tree_leaves(function(*args, **kwargs)), strict=False):
                    if isinstance(own, Tensor):
                        own.copy_(new)

        return Recorded(replay, result, expected)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []
        """Operators, their arguments, and the tensors that they filled: none of a view, or of one that writes to its
        arguments. All memory stays in use, as in the pool of a graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        is_old = func.is_view or func._schema.is_mutable
        self.calls.append((func, args, kwargs or {}, [] if is_old else tree_leaves(results)))
        return results
