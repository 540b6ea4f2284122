"""Files of an evaluation: what is read, and where the report goes."""

from __future__ import annotations

from collections.abc import Iterator

from common.config import MOST_TRAINERS, StreamConfig
from common.run_words import counted
from workloads.base.front import FileEvents

MOST_PARTICLES = 100_000_000
"""Largest number of particles in one event. Address space for as many is reserved only if a footer announces them."""
_SLOT_MIB = 2048.0
_UNIT_EVENTS = 65_536


def evaluation_stream(stream: StreamConfig) -> StreamConfig:
    """Stream settings of the run for a random sample, without the limit on the particles of an event.

    Unlike in training, outliers stay in the sample: an event of a hundred thousand particles is part of the data.
    """
    return stream.model_copy(
        update={"shuffle": True, "unit_events": _UNIT_EVENTS, "batch_events": _UNIT_EVENTS * MOST_TRAINERS}
        | {"slot_mib": _SLOT_MIB, "max_particles": MOST_PARTICLES, "max_particles_per_event": 0, "drop_empty": False}
        | {"max_squared_particles": 0}
    )


def reading_warnings(found: FileEvents) -> tuple[str, ...]:
    """Warnings about files that the model was trained on, and about what can't be used."""
    return tuple(_reading_warnings(found))


def _reading_warnings(found: FileEvents) -> Iterator[str]:
    if found.trained_on:
        yield (
            f"{len(found.trained_on)} of the {found.num_sources} files are among those that the model was trained on"
            f" (the first: {found.trained_on[0]}): the numbers do not show how it does on events that it never saw"
        )
    if found.left_out:
        yield (
            f"{counted(len(found.left_out), 'bad input')} (files, row groups, events) left out, as in a run; the first:"
            f" {found.left_out[0]}"
        )
