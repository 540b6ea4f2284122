"""Copier of microbatches into host memory, as for a trainer on a CPU, without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from common.arena import Arena
from common.unit_arrays import UnitArrays
from services.trainer.stream.microbatch_copy import slice_microbatch
from workloads.base.batch import Microbatch


class CountingCopier:
    """Copier that reads every byte of a microbatch once; the copy is complete on return."""

    batches_ahead = 0

    def __init__(self, arena: Arena) -> None:
        del arena

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        """Microbatch with numpy arrays in place of tensors: only its sizes are used."""
        offsets, particles, events = slice_microbatch(arrays, index)
        host_offsets_E1 = offsets - offsets[0]
        no_tensor: Any = host_offsets_E1
        event_columns: dict[str, Any] = {name: np.array(column) for name, column in events.items()}
        particle_columns: dict[str, Any] = {name: np.array(column) for name, column in particles.items()}
        return Microbatch(
            epoch=epoch,
            unit=unit,
            index=index,
            offsets_E1=no_tensor,
            host_offsets_E1=host_offsets_E1,
            event_columns=event_columns,
            particle_columns=particle_columns,
            num_events=len(offsets) - 1,
            num_particles=int(host_offsets_E1[-1]),
        )

    def mark(self) -> None:
        """Nothing to mark: copies are synchronous."""

    def hand_over(self, mark: None) -> None:
        """Nothing to do: the batch is complete already."""

    def finish_unit(self, release: Callable[[], None]) -> None:
        """Call ``release`` at once."""
        release()

    def poll(self) -> None:
        """Nothing to release."""

    def close(self) -> None:
        """Nothing to close."""
