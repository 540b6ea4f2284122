"""Events for the trainer's validation block, drawn from separate files and read as in `read_events`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import BadInputError
from common.files.inputs import NothingFound, expand, local_path, named_inputs
from common.files.remotes import Remotes
from common.plan import SourceFile
from common.unit_arrays import UnitArrays
from icestream.reading.events import (
    READ_FACTOR,
    first_events,
    joined,
    read_units,
    stage_local,
    staged_in_random_order,
)
from services.config.root import Config

_SLOT_MIB = 256.0


def read_validation_events(config: Config, run_dir: Path) -> UnitArrays:
    """Sample of `trainer.validation.events` events of `trainer.validation.input`, drawn with the run's seed, or all.

    They are treated like training events: outliers are excluded, and depths are vertical.

    Raises BadInputError that names the file.
    """
    wanted = config.trainer.validation.events
    stream = config.stream.model_copy(
        update={"shuffle": True, "unit_events": wanted * READ_FACTOR, "batch_events": wanted, "lanes": 1}
        | {"slot_mib": max(_SLOT_MIB, config.stream.slot_mib)}
    )
    workload = config.stored_workload()
    staged = staged_in_random_order(_files(config), stage_local(workload, stream), stream.unit_events, config.seed)
    taken: list[UnitArrays] = []
    missing = wanted
    with contextlib.closing(read_units(staged, workload, stream, config.seed, run_dir)) as units:
        for arrays, _ in units:
            taken.append(first_events(arrays, missing))
            missing -= len(taken[-1].offsets) - 1
            if not missing:
                break
    if missing == wanted:
        raise BadInputError(f"trainer.validation.input = {list(config.trainer.validation.input)}: no usable event")
    return joined(taken, stream)


def _files(config: Config) -> list[SourceFile]:
    """Validation files. Raises BadInputError for remote files, and for training files of the run."""
    inputs = config.trainer.validation.input
    for text in inputs:
        if local_path(text.removeprefix("file://")) is None:
            raise BadInputError(f"trainer.validation.input: {text} is not local; copy some files, and name these")
    with Remotes(config.remote_access()) as remotes:
        files = expand(inputs, remotes)
        trained = set(local_files(config.input, remotes))
    for file in files:
        if Path(file.url).resolve() in trained:
            raise BadInputError(
                f"{file.url} is one of trainer.validation.input and of the run's inputs: move it out of these"
            )
    return files


def local_files(inputs: Sequence[str], remotes: Remotes) -> Iterator[Path]:
    """Local files of a run's inputs, as far as visible here."""
    for text in named_inputs(inputs):
        if local_path(text.removeprefix("file://")) is not None:
            with contextlib.suppress(NothingFound):  # ranges, or the fetcher is on another machine
                yield from [Path(file.url).resolve() for file in expand([text], remotes)]
