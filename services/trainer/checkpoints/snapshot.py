"""Copies of a checkpoint's content in host memory: training continues while they are written, or rolls back to them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """Content of a future checkpoint. ``content`` is complete after wait()."""

    def __init__(self, content: dict[str, Any], copied: torch.cuda.Event | None = None) -> None:
        self.content = content
        self._copied = copied

    def wait(self) -> None:
        """Wait for the copies from the device."""
        if self._copied is not None:
            self._copied.synchronize()

    def restorable(self) -> dict[str, Any]:
        """Copy of the content: the restored objects may be changed in place."""
        self.wait()
        content: dict[str, Any] = _with_tensors(self.content, lambda tensor: tensor.clone())
        return content


class Snapshots:
    """Snapshots of content on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def take(self, content: dict[str, Any]) -> Snapshot:
        """Snapshot of ``content``.

        On CUDA the host doesn't wait: the training stream copies everything on the device, and a separate stream
        transfers the copy into page-locked memory while the next step runs.
        """
        on_device: list[tuple[Tensor, Tensor]] = []

        def to_host(tensor: Tensor) -> Tensor:
            still = tensor.detach().clone()
            if still.device.type != "cuda":
                return still
            host = torch.empty(still.shape, dtype=still.dtype, pin_memory=True)
            on_device.append((host, still))
            return host

        copied = _with_tensors(content, to_host)
        if not on_device or self._stream is None:
            return Snapshot(copied)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for host, still in on_device:
                host.copy_(still, non_blocking=True)
                still.record_stream(self._stream)
            event = torch.cuda.Event()
            event.record(self._stream)
        return Snapshot(copied, event)


def not_finite(content: object) -> list[str]:
    """Names of the arrays with a number that is not finite. Scalars may have any value: they are measurements, no
    weights."""
    return [
        name
        for name, tensor in _tensors(content)
        if tensor.dim() > 0 and tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Copy of nested dicts, lists and tuples, with other tensors."""
    match value:
        case Tensor():
            return change(value)
        case dict():
            new = copy.copy(value)  # an OrderedDict of torch has attributes
            for key, inner in value.items():
                new[key] = _with_tensors(inner, change)
            return new
        case list():
            return [_with_tensors(inner, change) for inner in value]
        case tuple():
            return tuple(_with_tensors(inner, change) for inner in value)
        case _:
            return value


def _tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    match value:
        case Tensor():
            yield name, value
        case dict():
            for key, inner in value.items():
                yield from _tensors(inner, f"{name}.{key}" if name else str(key))
        case list() | tuple():
            for index, inner in enumerate(value):
                yield from _tensors(inner, f"{name}.{index}")
