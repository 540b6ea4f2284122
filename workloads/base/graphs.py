"""CUDA graphs: the operators of a computation are recorded once for each size of its input, and replayed by one call.

A replay reads and writes the memory of the recording: input is copied to where it was, results lie where they were
until the next computation. Weights are read where they are, so that updates in place are seen. Written by the
documentation of `torch.cuda.graph`; it ran on an H100 with torch 2.11. The calls into CUDA are in `CudaRuntime` alone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import groupby
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.errors import BadInputError
from workloads.base.batch import Microbatch
from workloads.base.flops import is_counting

logger = logging.getLogger(__name__)

MOST_GRAPHS = 32
"""Recordings that are kept, those used last: each holds its input and results, all share the memory in between."""
_WARM_UP_RUNS = 3
_TOLERANCE, _ROUNDING = 1e-3, 1e-5
"""Largest difference of a first replay, relative to the norm, and for what cancels: a GPU may sum in another order."""

Result = TypeVar("Result")


class Recorded(NamedTuple, Generic[Result]):
    """Recorded operators."""

    replay: Callable[[], None]
    """Function that repeats them."""
    result: Result
    """Tensors where it writes the results; without values before the first repetition."""
    expected: Result
    """Results without a recording."""


class CudaRuntime:
    """Recorder of operators as CUDA graphs on the present device, of a common memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Result]) -> Recorded[Result]:
        """Recording of the operators of ``compute``. Waits for the device."""
        side = torch.cuda.Stream()  # libraries allocate at first use, which a recording doesn't allow
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_RUNS - 1):
                compute()
            expected = compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads copy the next batch meanwhile: only what this one calls is restricted.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = compute()
        return Recorded(graph.replay, result, expected)


@dataclass(frozen=True)
class _Recording:
    arguments: Any
    """Copies of the arguments, whose tensors the recording reads."""
    replay: Callable[[], None]
    result: Any


class Graphs:
    """Recordings of computations, by function, by the sizes of its arguments' tensors and by their numbers."""

    def __init__(self, runtime: CudaRuntime, most: int = MOST_GRAPHS) -> None:
        self._runtime = runtime
        self._most = most
        self._recordings: OrderedDict[Hashable, _Recording] = OrderedDict()

    def __call__(self, compute: Callable[..., Result], *arguments: Any) -> Result:
        """Result of ``compute(*arguments)``. Its tensors are valid until the next call.

        Arguments are tensors, numbers, tuples and dataclasses of them; others must not matter. ``compute`` draws no
        random numbers, doesn't wait for the device, and uses other tensors only if they stay where they are.
        """
        if is_counting():  # a recording would count its warm-up, a replay nothing
            return compute(*arguments)
        given = list(_leaves(arguments))
        key = (
            compute.__qualname__,
            tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in given),
        )
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._recordings[key] = self._recorded(compute, arguments)
            if len(self._recordings) > self._most:
                self._recordings.popitem(last=False)
        else:
            self._recordings.move_to_end(key)
            _copy(list(_leaves(recording.arguments)), given)
            recording.replay()
        result: Result = recording.result
        return result

    def clear(self) -> None:
        """Forget all recordings, and free their memory."""
        self._recordings.clear()

    def _recorded(self, compute: Callable[..., Result], arguments: tuple[Any, ...]) -> _Recording:
        """New recording, replayed once. Raises RuntimeError if that has other results than the computation itself."""
        own = _cloned(arguments)
        replay, result, expected = self._runtime.record(lambda: compute(*own))
        replay()
        for one, other in zip(tree_leaves(result), tree_leaves(expected), strict=True):
            if (one - other).double().norm() > _TOLERANCE * other.double().norm() + _ROUNDING:
                raise RuntimeError(
                    f"a recording of {compute.__qualname__} has other results than the computation itself"
                )
        return _Recording(own, replay, result)


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and numbers in nested tuples and dataclasses, in order; None for a microbatch, as in `_cloned`."""
    if isinstance(value, Microbatch):
        yield None
    elif isinstance(value, tuple):
        for one in value:
            yield from _leaves(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, Tensor | bool | int | float | str | None):
        yield value


def _cloned(value: Any) -> Any:
    """The same tuples and dataclasses with copies of the tensors, and without the events that they were made of."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        changed = [_cloned(one) for one in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if isinstance(value, Microbatch):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _cloned(getattr(value, field.name)) for field in fields(value)})
    return value


def _copy(own: list[Any], given: list[Any]) -> None:
    """Copy the values of the tensors, those of one type by one operator."""
    pairs = [pair for pair in zip(own, given, strict=True) if isinstance(pair[0], Tensor)]
    pairs.sort(key=lambda pair: str(pair[0].dtype))
    for _, of_type in groupby(pairs, key=lambda pair: pair[0].dtype):
        to, origin = zip(*of_type, strict=True)
        torch._foreach_copy_(list(to), list(origin))


def make_graphs(setting: bool | Literal["auto"], section: str, obstacle: str) -> Graphs | None:
    """Graphs, if ``setting`` asks for them. ``obstacle``: why they can't be used; empty: they can.

    Raises BadInputError where they must be used and can't; where they may, that is logged.
    """
    if setting is False:
        return None
    if not obstacle:
        return Graphs(CudaRuntime())
    if setting is True:
        raise BadInputError(f"{section}.cuda_graphs = true is not possible {obstacle}: set it to auto or false")
    logger.info("%s.cuda_graphs = auto: off %s", section, obstacle)
    return None
