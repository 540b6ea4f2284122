"""Input of a training step: microbatches on the device, and the batch that they form.

Shape suffixes: E events, P particles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from common.unit_arrays import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Microbatch:
    """Consecutive events of one unit within the limits of a microbatch, on the training device."""

    epoch: int
    unit: int
    index: int
    """Number of this microbatch inside its unit."""
    offsets_E1: Tensor
    """(E + 1,) int64, starts at 0: event e owns particles offsets[e] to offsets[e + 1]."""
    host_offsets_E1: Array
    """The same on the host: counting particles needs no host sync."""
    event_columns: dict[str, Tensor]
    """Name of the column in ``common.schema`` -> (E, fields)."""
    particle_columns: dict[str, Tensor]
    """Name of the column in ``common.schema`` -> (P, fields)."""
    num_events: int
    num_particles: int
    shard: int = 0
    number: int = 0
    """Number among the microbatches of a batch, those of other ranks counted."""

    @property
    def num_present(self) -> int:
        """Events that have particles."""
        return int(np.count_nonzero(np.diff(self.host_offsets_E1)))

    @property
    def squared_particles(self) -> int:
        """Σ N² over its events with N particles each."""
        return int((np.diff(self.host_offsets_E1) ** 2).sum())

    def part(self, first: int, last: int) -> Microbatch:
        """Events ``first`` to ``last`` (exclusive), as views."""
        first_particle, last_particle = (int(self.host_offsets_E1[event]) for event in (first, last))
        return replace(
            self,
            offsets_E1=self.offsets_E1[first : last + 1] - first_particle,
            host_offsets_E1=self.host_offsets_E1[first : last + 1] - first_particle,
            event_columns={name: column[first:last] for name, column in self.event_columns.items()},
            particle_columns={
                name: column[first_particle:last_particle] for name, column in self.particle_columns.items()
            },
            num_events=last - first,
            num_particles=last_particle - first_particle,
        )

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Microbatch:
        """Copy on another device."""
        copy = self._with_columns(lambda column: column.to(device, non_blocking=non_blocking))
        return replace(copy, offsets_E1=self.offsets_E1.to(device, non_blocking=non_blocking))

    def with_floats(self, dtype: torch.dtype) -> Microbatch:
        """Copy with all floats of another type."""
        return self._with_columns(lambda column: column.to(dtype) if column.is_floating_point() else column)

    def _with_columns(self, changed: Callable[[Tensor], Tensor]) -> Microbatch:
        return replace(
            self,
            event_columns={name: changed(column) for name, column in self.event_columns.items()},
            particle_columns={name: changed(column) for name, column in self.particle_columns.items()},
        )

    def halves(self) -> tuple[Microbatch, ...]:
        """Two parts with about half of the particles each; the microbatch itself if it has one event."""
        if self.num_events < 2:
            return (self,)
        middle = int(np.searchsorted(self.host_offsets_E1, self.num_particles / 2))
        middle = min(max(middle, 1), self.num_events - 1)
        return self.part(0, middle), self.part(middle, self.num_events)

    def chunks(self, max_particles: int) -> Iterator[Microbatch]:
        """Consecutive parts with at most ``max_particles`` particles each, or a single larger event."""
        if self.num_particles <= max_particles:
            yield self
            return
        for first, end in runs_of_events(self.host_offsets_E1, max_particles):
            yield self.part(first, end)


def runs_of_events(offsets_E1: Array, most: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of events, in order, with at most ``most`` particles each, or of a single larger event."""
    first = 0
    while first < len(offsets_E1) - 1:
        end = max(int(np.searchsorted(offsets_E1, offsets_E1[first] + most, side="right")) - 1, first + 1)
        yield first, end
        first = end


def joined(microbatches: Sequence[Microbatch]) -> Microbatch:
    """Events of several microbatches, in order, as one; copied, unless there is one. No host sync.

    Unit, index and number are those of the first.
    """
    import torch

    first, *others = microbatches
    if not others:
        return first
    num_particles = np.cumsum([one.num_particles for one in microbatches]).tolist()
    ends = torch._foreach_add([one.offsets_E1[1:] for one in others], num_particles[:-1])
    hosts = (one.host_offsets_E1[1:] + before for one, before in zip(others, num_particles, strict=False))
    return replace(
        first,
        offsets_E1=torch.cat([first.offsets_E1, *ends]),
        host_offsets_E1=np.concatenate([first.host_offsets_E1, *hosts]),
        event_columns={
            name: torch.cat([one.event_columns[name] for one in microbatches]) for name in first.event_columns
        },
        particle_columns={
            name: torch.cat([one.particle_columns[name] for one in microbatches]) for name in first.particle_columns
        },
        num_events=sum(one.num_events for one in microbatches),
        num_particles=num_particles[-1],
    )


@dataclass(frozen=True)
class Batch:
    """Consecutive microbatches of each shard, of at least ``batch_events`` events over all ranks: one step."""

    microbatches: Sequence[Microbatch]
    """Microbatches of this rank; none if the batch is too small for all ranks. Those of a large validation
    block come to the device one at a time: iterate over them, and keep none."""
    events_elsewhere: int = 0
    """Events of the same step on other ranks."""
    particles_elsewhere: int = 0

    def among(self, events: int, particles: int) -> Batch:
        """This rank's share of a batch of ``events`` and ``particles`` over all ranks."""
        return replace(
            self, events_elsewhere=events - self.num_events, particles_elsewhere=particles - self.num_particles
        )

    def with_microbatches(self, microbatches: Sequence[Microbatch]) -> Batch:
        """The same batch with other copies of its microbatches."""
        return replace(self, microbatches=microbatches)

    @property
    def num_events(self) -> int:
        """Events in all microbatches of this rank."""
        return sum(microbatch.num_events for microbatch in self.microbatches)

    @property
    def num_particles(self) -> int:
        """Particles in all microbatches of this rank."""
        return sum(microbatch.num_particles for microbatch in self.microbatches)

    @property
    def total_events(self) -> int:
        """Events of all ranks."""
        return self.num_events + self.events_elsewhere

    @property
    def total_particles(self) -> int:
        """Particles of all ranks."""
        return self.num_particles + self.particles_elsewhere
