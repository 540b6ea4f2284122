"""What a model's step gets: microbatches on the device, and the batch that they make.

Shape suffixes: E events, P particles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Microbatch:
    """Consecutive events of one unit, with at most ``max_particles`` particles, on the training device."""

    epoch: int
    unit: int
    index: int
    """Number of this microbatch inside its unit."""
    offsets_E1: Tensor
    """(E + 1,) int64, starts at 0: event e owns particles offsets[e] to offsets[e + 1]."""
    event_columns: dict[str, Tensor]
    """Name of the column in ``common.schema`` -> (E, fields)."""
    particle_columns: dict[str, Tensor]
    """Name of the column in ``common.schema`` -> (P, fields)."""
    num_events: int
    num_particles: int


@dataclass(frozen=True)
class Batch:
    """Consecutive microbatches of each lane, of at least ``batch_events`` events in all: one optimiser step."""

    microbatches: tuple[Microbatch, ...]
    """This rank's; none if its lanes are used up and those of others are not."""
    events_of_others: int = 0
    """What other ranks train in the same step."""
    particles_of_others: int = 0

    def among(self, events: int, particles: int) -> Batch:
        """This rank's share of a batch that has so many events and particles in all."""
        return replace(
            self, events_of_others=events - self.num_events, particles_of_others=particles - self.num_particles
        )

    @property
    def events_of_all(self) -> int:
        """Events that all ranks train in this step: the same on each."""
        return self.num_events + self.events_of_others

    @property
    def particles_of_all(self) -> int:
        """Particles that all ranks train in this step."""
        return self.num_particles + self.particles_of_others

    @property
    def num_events(self) -> int:
        """Events in all microbatches."""
        return sum(microbatch.num_events for microbatch in self.microbatches)

    @property
    def num_particles(self) -> int:
        """Particles in all microbatches."""
        return sum(microbatch.num_particles for microbatch in self.microbatches)
