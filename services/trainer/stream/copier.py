"""Copiers of microbatches out of slots: asynchronously to a CUDA device, or into separate memory on the CPU."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from common.arena import Arena
from common.unit_arrays import Array, UnitArrays
from services.trainer.stream.microbatch_copy import Copier, Copiers, slice_microbatch
from workloads.base.batch import Microbatch

logger = logging.getLogger(__name__)


def copy_to_host(arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
    """Microbatch in separate memory on the CPU."""
    offsets, particles, events = slice_microbatch(arrays, index)
    return _microbatch(offsets, particles, events, epoch, unit, index, lambda a: torch.from_numpy(np.array(a)))


class HostCopier:
    """Copier for the CPU: the copy is complete on return."""

    batches_ahead = 0
    """Number of batches to copy before the loop requests them."""

    def __init__(self, arena: Arena) -> None:
        del arena

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        """Microbatch in separate memory."""
        return copy_to_host(arrays, epoch, unit, index)

    def mark(self) -> None:
        """Mark the end of a batch's copies, for hand_over()."""

    def hand_over(self, mark: None) -> None:
        """Hand the batch over for use."""

    def finish_unit(self, release: Callable[[], None]) -> None:
        """Call ``release`` as soon as all copies so far are complete."""
        release()

    def poll(self) -> None:
        """Release the units copied meanwhile."""

    def close(self) -> None:
        """Release the arena."""


class CudaCopier:
    """Copier for a GPU: copies from the page-locked arena on a separate stream.

    The arena is registered as page-locked memory once, so that a decoder writes straight into memory from which the
    GPU copies. A unit's slot is released when the CUDA event behind its last copy has completed. The stream on which a
    batch is trained waits for the event behind that batch's last copy, not for those of the batches ahead of it.
    """

    batches_ahead = 2
    """Two batches: one is copied while the other, complete, waits for the end of the step."""

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pending: list[tuple[torch.cuda.Event, Callable[[], None]]] = []
        self._slab = torch.from_numpy(arena.whole())
        result = torch.cuda.cudart().cudaHostRegister(self._slab.data_ptr(), arena.size_bytes, 0)
        self._registered = int(result) == 0
        if not self._registered:
            _forget_last_error(device)
            _warn_of_pageable_memory(str(result))

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        """Microbatch on the device, complete for the current stream once its batch was handed over."""
        offsets, particles, events = slice_microbatch(arrays, index)
        current = torch.cuda.current_stream(self._device)

        def to_device(array: Array) -> Tensor:
            tensor = torch.from_numpy(array).to(self._device, non_blocking=True)
            tensor.record_stream(current)
            return tensor

        with torch.cuda.stream(self._stream):
            microbatch = _microbatch(offsets, particles, events, epoch, unit, index, to_device)
            microbatch.offsets_E1.record_stream(current)
        return microbatch

    def mark(self) -> torch.cuda.Event:
        """Event behind all copies so far."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def hand_over(self, mark: torch.cuda.Event) -> None:
        """Make the current stream wait for the batch; the host doesn't wait."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    def finish_unit(self, release: Callable[[], None]) -> None:
        """Call ``release`` once all copies so far are complete, at a later poll()."""
        event = torch.cuda.Event()
        event.record(self._stream)
        self._pending.append((event, release))
        self.poll()

    def poll(self) -> None:
        """Release the units whose copies have completed."""
        while self._pending and self._pending[0][0].query():
            self._pending.pop(0)[1]()

    def close(self) -> None:
        """Wait for the last copies and release the arena; no more units are released."""
        self._stream.synchronize()
        self._pending.clear()
        if self._registered and int(torch.cuda.cudart().cudaHostUnregister(self._slab.data_ptr())):
            _forget_last_error(self._device)
        del self._slab


@cache
def _warn_of_pageable_memory(result: str) -> None:
    """Warn once a process: each connection has an arena."""
    logger.warning(
        "the arena could not be page-locked (cudaHostRegister: %s); copies to the GPU will be slower. Raise the limit"
        " of locked memory (ulimit -l unlimited; in a container --ulimit memlock=-1)",
        result,
    )


def _forget_last_error(device: torch.device) -> None:
    """Clear CUDA's stored error of a failed call here; otherwise torch would report it after its next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def make_copier(arena: Arena, device: torch.device) -> Copier:
    """Copier for a device."""
    return CudaCopier(arena, device) if device.type == "cuda" else HostCopier(arena)


def copiers_for(device: torch.device) -> Copiers:
    """Copiers to a device, one for each connection."""
    return Copiers(lambda arena: make_copier(arena, device), writable=device.type == "cuda")


def _microbatch(
    offsets: Array,
    particles: dict[str, Array],
    events: dict[str, Array],
    epoch: int,
    unit: int,
    index: int,
    to_tensor: Callable[[Array], Tensor],
) -> Microbatch:
    offsets_E1 = to_tensor(offsets)
    return Microbatch(
        epoch=epoch,
        unit=unit,
        index=index,
        offsets_E1=offsets_E1 - offsets_E1[0],
        host_offsets_E1=offsets - offsets[0],
        event_columns={name: to_tensor(column) for name, column in events.items()},
        particle_columns={name: to_tensor(column) for name, column in particles.items()},
        num_events=len(offsets) - 1,
        num_particles=len(next(iter(particles.values()))),
    )
