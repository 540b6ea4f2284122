"""Files of an evaluation: what is read, and where the report goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from common.config import StreamConfig
from common.errors import BadInputError

MOST_PARTICLES = 100_000_000
"""Largest number of particles in one event. Address space for as many is reserved only if a footer announces them."""
_SLOT_MIB = 2048.0
_UNIT_EVENTS = 65_536


def evaluation_stream(stream: StreamConfig) -> StreamConfig:
    """Stream settings of the run for a random sample, without the limit on the particles of an event.

    Unlike in training, outliers stay in the sample: an event of a hundred thousand particles is part of the data.
    """
    return stream.model_copy(
        update={"shuffle": True, "unit_events": _UNIT_EVENTS, "batch_events": _UNIT_EVENTS, "lanes": 1}
        | {"slot_mib": _SLOT_MIB, "max_particles": MOST_PARTICLES, "max_particles_per_event": 0, "drop_empty": False}
        | {"max_squared_particles": 0}
    )


def trained_on_warnings(trained_on: Sequence[str], num_sources: int) -> tuple[str, ...]:
    """Warning if files of the evaluation are among those of the training."""
    if not trained_on:
        return ()
    return (
        f"{len(trained_on)} of the {num_sources} files are among those that the model was trained on"
        f" (the first: {trained_on[0]}): the numbers do not show how it does on events that it never saw",
    )


def check_writable(folder: Path) -> None:
    """Check that files can be written to ``folder``, before minutes of work. Raises BadInputError."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise BadInputError(f"{folder}: {there} is no folder; name another one with -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInputError(f"{folder}: nothing can be written to {there}; name another folder with -o")
