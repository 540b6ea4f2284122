"""Microbatches in a slot, and what copies them out of it (copier.py for torch, counting/copier.py without)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from common.arena import Arena
from common.unit_arrays import Array, UnitArrays
from workloads.base.batch import Microbatch


def slice_microbatch(arrays: UnitArrays, index: int) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Views of one microbatch: offsets (E + 1,) as they stand in the unit, particle columns, event columns."""
    first, last = arrays.microbatch_bounds[index], arrays.microbatch_bounds[index + 1]
    first_particle, last_particle = arrays.offsets[first], arrays.offsets[last]
    return (
        arrays.offsets[first : last + 1],
        {name: column[first_particle:last_particle] for name, column in arrays.particle_columns.items()},
        {name: column[first:last] for name, column in arrays.event_columns.items()},
    )


class Copier(Protocol):
    """Copies the microbatches of one connection."""

    @property
    def batches_ahead(self) -> int:
        """Batches whose copies are worth beginning before the loop asks for them."""

    def copy(self, arrays: UnitArrays, epoch: int, unit: int, index: int) -> Microbatch:
        """The microbatch in memory of its own, complete once its batch was handed over."""

    def mark(self) -> Any:
        """All copies of a batch have been begun; the result is passed to hand_over()."""

    def hand_over(self, mark: Any) -> None:
        """The batch is used from here on."""

    def finish_unit(self, release: Callable[[], None]) -> None:
        """Call ``release`` as soon as all copies so far are complete, at a later poll() perhaps."""

    def poll(self) -> None:
        """Release what has been copied meanwhile."""

    def close(self) -> None:
        """Let go of the arena."""


class Copiers(NamedTuple):
    """The way in which a process copies, for each connection anew."""

    make: Callable[[Arena], Copier]
    writable: bool = False
    """The arena is mapped for writing: page-locking wants that. Nothing is written."""
