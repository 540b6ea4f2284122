"""Finds, on the CPU, what would make the host wait for a GPU: in a step there must be nothing of the kind.

Every operator passes through a TorchDispatchMode; what Python does with a tensor without an operator (`tolist`,
`cpu`, `numpy`) through a TorchFunctionMode. On the CPU all tensors are at hand: what can't be told from a tensor on the
device counts as one. The one exception: torch's optimisers count their steps in 0-dim tensors on the host, whatever the
parameters' device, and read them.

Not found: operators that wait inside their CUDA implementation only. `torch.cuda.set_sync_debug_mode` finds those, on a
device (test_host_syncs.py).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READS_A_VALUE = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
_SIZE_BY_VALUES = {
    *("nonzero", "nonzero_numpy", "masked_select", "argwhere", "bincount", "histc"),
    *("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"),
}
"""How large the result is depends on values: the host has to know them to allocate it."""
_MASKS = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_FROM_HOST = {"lift_fresh", "lift_fresh_copy"}
"""torch.tensor([…]) and torch.as_tensor([…]): from memory that is not page-locked, and so with a wait."""
_IN_PYTHON = {"tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"}


class HostSync(AssertionError):
    """The host would wait for the device."""


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raises HostSync at the first operation that would make the host wait, with the line of ours that did it."""
    operators = _Operators()

    def begins(optimiser: Optimizer, *_: object) -> None:
        operators.counts_on_host = {
            state["step"].data_ptr()
            for state in optimiser.state.values()
            if isinstance(state.get("step"), Tensor) and not _on_device(optimiser)
        }

    def ended(*_: object) -> None:
        operators.counts_on_host = set()

    hooks = [register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ended)]
    try:
        with _Methods(), operators:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _on_device(optimiser: Optimizer) -> bool:
    """True if its step counts are on the device: such an optimiser must not read them."""
    return any(group.get("capturable") or group.get("fused") for group in optimiser.param_groups)


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts_on_host: set[int] = set()
        """Addresses of an optimiser's step counts, while it steps."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        problem = self._problem(func.overloadpacket.__name__, args, kwargs)
        if problem:
            raise HostSync(f"{problem}, at {_our_line()}")
        return func(*args, **kwargs)

    def _problem(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if name in _READS_A_VALUE and not self._is_step_count(args):
            return f"{name} reads a value"
        if name in _SIZE_BY_VALUES:
            return f"{name} gives a size that depends on values"
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            return "repeat_interleave without output_size gives a size that depends on values"
        if name in _MASKS and any(_is_mask(index) for index in args[1]):
            return f"{name} with a mask gives a size that depends on values"
        if name in _FROM_HOST and not self.counts_on_host:
            return f"{name} copies from the host"
        if name == "_to_copy" and kwargs.get("device") not in (None, args[0].device):
            return f"a copy from {args[0].device} to {kwargs['device']}"
        return ""

    def _is_step_count(self, args: tuple[Any, ...]) -> bool:
        return bool(args) and isinstance(args[0], Tensor) and args[0].data_ptr() in self.counts_on_host


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _IN_PYTHON and getattr(Tensor, name, None) is func:
            raise HostSync(f"Tensor.{name} reads values, at {_our_line()}")
        return func(*args, **(kwargs or {}))


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _our_line() -> str:
    """The innermost line that is neither torch's nor this module's."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if "torch" not in path.parts and path.name != Path(__file__).name:
            return f"{path.name}:{frame.lineno}: {frame.line}"
    return "?"
