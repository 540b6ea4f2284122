"""Copiers of units out of slots: asynchronously to a CUDA device, or into separate memory on the CPU."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from common.schema import UnitArrays
from common.transport import Arena
from common.unit_arrays import Array, address
from workloads.base.batch import Microbatch

logger = logging.getLogger(__name__)

GAP_BYTES = 4096
"""Arrays no further apart are in one span: these bytes take less time than another transfer's call."""
_ALIGNMENT_BYTES = 64


class Spans:
    """Spans that hold ``arrays``, contiguous ones of one slot. A span's size and the places in it are multiples of 64
    bytes, as the places in a slot are: tensors of every type may begin there."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.merged: list[tuple[int, int]] = []
        """First address and end of each span, in order."""
        for first, num_bytes in sorted((address(array), array.nbytes) for array in arrays if array.nbytes):
            end = first - (-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            if self.merged and first <= self.merged[-1][1] + GAP_BYTES:
                self.merged[-1] = self.merged[-1][0], max(end, self.merged[-1][1])
            else:
                self.merged.append((first, end))

    def place(self, array: Array) -> tuple[int, int]:
        """Number of the span that holds ``array``, and the array's first byte there."""
        if not array.nbytes:
            return 0, 0  # numpy gives an empty view any address
        begin = address(array)
        number = max(number for number, (first, _) in enumerate(self.merged) if first <= begin)
        return number, begin - self.merged[number][0]


def slice_microbatch(
    arrays: UnitArrays, index: int, end: int | None = None
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Views of one microbatch, or of those up to ``end`` (exclusive): offsets (E + 1,) as stored in the unit, particle
    columns, event columns."""
    bounds, offsets = arrays.microbatch_bounds, arrays.offsets
    first, last = bounds.item(index), bounds.item(end or index + 1)  # numbers of Python: slices by numpy's are slow
    first_particle, last_particle = offsets.item(first), offsets.item(last)
    return (
        offsets[first : last + 1],
        {name: column[first_particle:last_particle] for name, column in arrays.particle_columns.items()},
        {name: column[first:last] for name, column in arrays.event_columns.items()},
    )


def ids_of(arrays: UnitArrays, index: int, end: int, identity: str | None) -> dict[str, Array]:
    """Column ``identity`` of microbatches ``index`` to ``end`` by its name, in memory of its own; empty without one."""
    if identity is None:
        return {}
    first, last = arrays.microbatch_bounds[index], arrays.microbatch_bounds[end]
    return {identity: arrays.event_columns[identity][first:last].copy()}


def num_bytes(microbatch: Microbatch) -> int:
    """Bytes of a microbatch's columns and offsets, on its device."""
    columns = (*microbatch.event_columns.values(), *microbatch.particle_columns.values())
    return sum(column.nbytes for column in (microbatch.offsets_E1, *columns))


def copy_to_host(arrays: UnitArrays, epoch: int, unit: int, index: int, end: int | None = None) -> Microbatch:
    """Microbatch, or those up to ``end`` as one, in separate memory on the CPU."""
    offsets, particles, events = slice_microbatch(arrays, index, end)
    offsets_E1 = offsets - offsets[0]
    return Microbatch(
        epoch=epoch,
        unit=unit,
        index=index,
        offsets_E1=torch.from_numpy(offsets_E1.copy()),
        host_offsets_E1=offsets_E1,
        event_columns={name: torch.from_numpy(np.array(column)) for name, column in events.items()},
        particle_columns={name: torch.from_numpy(np.array(column)) for name, column in particles.items()},
        num_events=len(offsets) - 1,
        num_particles=int(offsets_E1[-1]),
    )


class HostUnit:
    """Copy of a unit for the CPU, in the order of its microbatches: each is complete on return."""

    def __init__(self, arrays: UnitArrays, epoch: int, unit: int) -> None:
        self._arrays, self._epoch, self._unit = arrays, epoch, unit

    def microbatch(self, index: int, end: int | None = None) -> Microbatch:
        """Return a microbatch, or those up to ``end`` as one, in separate memory."""
        return copy_to_host(self._arrays, self._epoch, self._unit, index, end)

    def wait(self) -> None:
        """Wait until the slot is not read any more, and may be released: it is not."""


class HostCopier:
    """Copier for the CPU."""

    batches_ahead = 0
    """Number of batches to copy before the loop requests them."""

    def __init__(self, columns: Collection[str]) -> None:
        """``columns``: names of those to copy."""
        self._columns = columns

    def begin(self, arrays: UnitArrays, epoch: int, unit: int) -> HostUnit:
        """Copy of a unit."""
        return HostUnit(arrays.only(self._columns), epoch, unit)

    def mark(self) -> None:
        """Nothing to mark: copies are synchronous."""

    def hand_over(self, mark: None) -> None:
        """Nothing to do: the batch is complete already."""

    def close(self) -> None:
        """Nothing to release."""


class CudaUnit:
    """Copy of a whole unit on a GPU; its microbatches are views."""

    def __init__(
        self, arrays: UnitArrays, epoch: int, unit: int, slab: Tensor, device: torch.device, stream: torch.cuda.Stream
    ) -> None:
        """``slab``: the arena, (bytes,) uint8 on the host. The copy runs on ``stream``."""
        self._arrays, self._epoch, self._unit = arrays, epoch, unit
        self._stream, self._used_on = stream, torch.cuda.current_stream(device)
        spans = Spans([arrays.offsets, *arrays.particle_columns.values(), *arrays.event_columns.values()])
        start = slab.data_ptr()
        with torch.cuda.stream(stream):
            pieces = [slab[first - start : end - start].to(device, non_blocking=True) for first, end in spans.merged]
        for piece in pieces:
            piece.record_stream(self._used_on)
        self._copied = torch.cuda.Event(blocking=True)  # the host sleeps in wait(), and lets other threads run
        self._copied.record(stream)

        def on_device(array: Array) -> Tensor:
            number, first = spans.place(array)
            of_it = pieces[number][first : first + array.nbytes]
            return of_it.view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)

        self._offsets = on_device(arrays.offsets)
        self._events = {name: on_device(column) for name, column in arrays.event_columns.items()}
        self._particles = {name: on_device(column) for name, column in arrays.particle_columns.items()}

    def microbatch(self, index: int, end: int | None = None) -> Microbatch:
        """Microbatch on the device, complete for the current stream once its batch was handed over."""
        first, last = (int(self._arrays.microbatch_bounds[one]) for one in (index, end or index + 1))
        offsets = self._arrays.offsets[first : last + 1]
        first_particle, last_particle = int(offsets[0]), int(offsets[-1])
        with torch.cuda.stream(self._stream):
            offsets_E1 = self._offsets[first : last + 1] - first_particle
        offsets_E1.record_stream(self._used_on)
        return Microbatch(
            epoch=self._epoch,
            unit=self._unit,
            index=index,
            offsets_E1=offsets_E1,
            host_offsets_E1=offsets - first_particle,
            event_columns={name: column[first:last] for name, column in self._events.items()},
            particle_columns={name: column[first_particle:last_particle] for name, column in self._particles.items()},
            num_events=last - first,
            num_particles=last_particle - first_particle,
        )

    def wait(self) -> None:
        """Wait until the copy, begun before the unit's first microbatch was taken, is complete."""
        self._copied.synchronize()


class CudaCopier:
    """Copier for a GPU: copies from the page-locked arena on a separate stream.

    The arena is registered as page-locked memory once, so that a decoder writes straight into memory from which the
    GPU copies. The columns that a step needs lie side by side in a slot: one transfer takes them, of all microbatches
    of the unit. The stream on which a batch is trained waits for the event behind that batch's last copy, not for those
    of the batches ahead of it.
    """

    batches_ahead = 2
    """Two batches: one is copied while the other, complete, waits for the end of the step."""

    def __init__(self, arena: Arena, device: torch.device, columns: Collection[str]) -> None:
        self._device = device
        self._columns = columns
        self._stream = torch.cuda.Stream(device, priority=-1)  # before the step's kernels: its own are tiny
        self._slab = torch.from_numpy(arena.whole())
        result = torch.cuda.cudart().cudaHostRegister(self._slab.data_ptr(), arena.size_bytes, 0)
        self._registered = int(result) == 0
        if not self._registered:
            _forget_last_error(device)
            _warn_of_pageable_memory(str(result))

    def begin(self, arrays: UnitArrays, epoch: int, unit: int) -> CudaUnit:
        """Copy of a unit, begun."""
        return CudaUnit(arrays.only(self._columns), epoch, unit, self._slab, self._device, self._stream)

    def mark(self) -> torch.cuda.Event:
        """Event behind all copies so far."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def hand_over(self, mark: torch.cuda.Event) -> None:
        """Make the current stream wait for the batch; the host doesn't wait."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    def close(self) -> None:
        """Wait for the last copies and release the arena."""
        self._stream.synchronize()
        if self._registered and int(torch.cuda.cudart().cudaHostUnregister(self._slab.data_ptr())):
            _forget_last_error(self._device)
        del self._slab


Copier = HostCopier | CudaCopier
"""Copier of the units of one connection. Between mark() and hand_over() a batch may wait for its turn."""
UnitCopy = HostUnit | CudaUnit
"""Copy of one unit out of its slot."""


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


def make_copier(arena: Arena, device: torch.device, columns: Collection[str]) -> Copier:
    """Copier of these columns to a device, for one connection."""
    return CudaCopier(arena, device, columns) if device.type == "cuda" else HostCopier(columns)
