"""Copier of microbatches into host memory, as for a trainer on a CPU, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.arena import Arena
from common.unit_arrays import UnitArrays
from services.trainer.stream.microbatch_copy import slice_microbatch
from workloads.base.batch import Microbatch


class CountingUnit:
    """Copy of a unit that reads every byte of a microbatch once; each is complete on return."""

    def __init__(self, arrays: UnitArrays, epoch: int, unit: int) -> None:
        self._arrays, self._epoch, self._unit = arrays, epoch, unit

    def microbatch(self, index: int, end: int | None = None) -> Microbatch:
        """Microbatch with numpy arrays in place of tensors: only its sizes are used."""
        offsets, particles, events = slice_microbatch(self._arrays, index, end)
        host_offsets_E1 = offsets - offsets[0]
        no_tensor: Any = host_offsets_E1
        event_columns: dict[str, Any] = {name: np.array(column) for name, column in events.items()}
        particle_columns: dict[str, Any] = {name: np.array(column) for name, column in particles.items()}
        return Microbatch(
            epoch=self._epoch,
            unit=self._unit,
            index=index,
            offsets_E1=no_tensor,
            host_offsets_E1=host_offsets_E1,
            event_columns=event_columns,
            particle_columns=particle_columns,
            num_events=len(offsets) - 1,
            num_particles=int(host_offsets_E1[-1]),
        )

    def wait(self) -> None:
        """Nothing to wait for."""


class CountingCopier:
    """Copier of all columns."""

    batches_ahead = 0

    def __init__(self, arena: Arena) -> None:
        del arena

    def begin(self, arrays: UnitArrays, epoch: int, unit: int) -> CountingUnit:
        """Copy of a unit."""
        return CountingUnit(arrays, epoch, unit)

    def mark(self) -> None:
        """Nothing to mark: copies are synchronous."""

    def hand_over(self, mark: None) -> None:
        """Nothing to do: the batch is complete already."""

    def close(self) -> None:
        """Nothing to close."""
