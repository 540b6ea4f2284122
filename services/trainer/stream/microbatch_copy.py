"""Microbatches in a slot, and the interface of their copiers (copier.py for torch, counting/copier.py without)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from common.arena import Arena
from common.unit_arrays import Array, UnitArrays
from workloads.base.batch import Microbatch


def slice_microbatch(arrays: UnitArrays, index: int) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Views of one microbatch: offsets (E + 1,) as stored in the unit, particle columns, event columns."""
    first, last = arrays.microbatch_bounds[index], arrays.microbatch_bounds[index + 1]
    first_particle, last_particle = arrays.offsets[first], arrays.offsets[last]
    return (
        arrays.offsets[first : last + 1],
        {name: column[first_particle:last_particle] for name, column in arrays.particle_columns.items()},
        {name: column[first:last] for name, column in arrays.event_columns.items()},
    )


class Copier(Protocol):
    """Copier of the microbatches of one connection."""

    @property
    def batches_ahead(self) -> int:
        """Number of batches to copy before the loop requests them."""

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        """Microbatch in separate memory, complete once its batch was handed over."""

    def mark(self) -> Any:
        """Mark the end of a batch's copies, for hand_over()."""

    def hand_over(self, mark: Any) -> None:
        """Hand the batch over for use."""

    def finish_unit(self, release: Callable[[], None]) -> None:
        """Call ``release`` as soon as all copies so far are complete, possibly at a later poll()."""

    def poll(self) -> None:
        """Release the units copied meanwhile."""

    def close(self) -> None:
        """Release the arena."""


class Copiers(NamedTuple):
    """Factory of a process's copiers, one for each connection."""

    make: Callable[[Arena], Copier]
    writable: bool = False
    """True if the arena is mapped for writing, which page-locking requires. Nothing is written."""
