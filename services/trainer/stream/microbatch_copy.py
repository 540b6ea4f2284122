"""Microbatches in a slot, and the interface of their copiers (copier.py for torch, counting/copier.py without)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from common.arena import Arena
from common.unit_arrays import Array, UnitArrays
from workloads.base.batch import Microbatch


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


class UnitCopy(Protocol):
    """Copy of one unit out of its slot, in the order of its microbatches."""

    def microbatch(self, index: int, end: int | None = None) -> Microbatch:
        """Microbatch, or those up to ``end`` as one, in separate memory; complete once its batch was handed over."""

    def wait(self) -> None:
        """Wait until the microbatches taken are complete: the slot is not read any more, and may be released."""


class Copier(Protocol):
    """Copier of the units of one connection."""

    @property
    def batches_ahead(self) -> int:
        """Number of batches to copy before the loop requests them."""

    def begin(self, arrays: UnitArrays, epoch: int, unit: int) -> UnitCopy:
        """Copy of a unit, begun."""

    def mark(self) -> Any:
        """Mark the end of a batch's copies, for hand_over()."""

    def hand_over(self, mark: Any) -> None:
        """Hand the batch over for use."""

    def close(self) -> None:
        """Release the arena."""


class Copiers(NamedTuple):
    """Factory of a process's copiers, one for each connection."""

    make: Callable[[Arena], Copier]
    writable: bool = False
    """True if the arena is mapped for writing, which page-locking requires. Nothing is written."""


def num_bytes(microbatch: Microbatch) -> int:
    """Bytes of a microbatch's columns and offsets, on its device."""
    columns = (*microbatch.event_columns.values(), *microbatch.particle_columns.values())
    return sum(column.nbytes for column in (microbatch.offsets_E1, *columns))
