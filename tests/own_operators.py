"""The operators inside icestream's own ones, for modes that look at every operator."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from workloads.base.kernels.registration import LIBRARY, ON_CPU


def call_inside(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result of an operator that ``mode`` is looking at; it sees what one of icestream's does in torch's own, too."""
    if func.namespace != LIBRARY.ns:
        return func(*args, **kwargs)
    with mode:
        return ON_CPU[func.overloadpacket.__name__](*args, **kwargs)
