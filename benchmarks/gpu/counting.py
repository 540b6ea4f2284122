"""Operators of a step, bytes that they read and write, and operations of its matrix products.

Counted on any device. Bytes are those of whole inputs and outputs of each operator that isn't a view: what eager code
moves. A fused kernel moves less, so that its bytes are counted as one operator's, or, inside of compiled code, not at
all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_WRITES_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Counts(NamedTuple):
    """Counts of one step."""

    operators: int
    num_bytes: int
    flops: int


def counted(work: Callable[[], object]) -> Counts:
    """Counts of one call, forward and backward passes."""
    operators = _Operators()
    with FlopCounterMode(display=False) as flops, operators:
        work()
    return Counts(operators.number, operators.num_bytes, int(flops.get_total_flops()))


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not _is_view(func):
            self.number += 1
            if func.overloadpacket.__name__ not in _WRITES_NOTHING:
                self.num_bytes += sum(_bytes_of(one) for one in tree_leaves((args, kwargs, result)))
        return result


def _is_view(func: Any) -> bool:
    """True for an operator that moves nothing: its result shares its argument's memory, and isn't written."""
    infos = [one.alias_info for one in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos) or func.overloadpacket.__name__ == "detach"


def _bytes_of(value: object) -> int:
    """Bytes of a tensor, 0 of anything else; those of an expanded one once."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return 0
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
