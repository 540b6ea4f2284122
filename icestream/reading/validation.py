"""Events for the trainer's validation block, drawn from files outside of the stream: see events.py."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.files.inputs import NothingFound, expand, local_path, named_inputs
from common.files.remotes import Remotes
from common.held_out import Which
from common.plan import SourceFile
from common.schema import EventSchema
from common.unit_arrays import UnitArrays
from icestream.reading.events import (
    READ_FACTOR,
    Report,
    cut,
    first_events,
    read_units,
    refuse,
    stage_local,
    staged_in_order,
)
from services.config.root import Config
from workloads.base.random_streams import SharedPurpose, numpy_stream

logger = logging.getLogger(__name__)

_SLOT_MIB = 256.0


def read_validation_events(config: Config, run_dir: Path) -> Iterator[UnitArrays]:
    """Sample of `trainer.validation.events` events, drawn with the run's seed, or all; in units of their own memory.

    With `stream.held_out` they are events held out of training, of the validation files or of the run's local inputs;
    else those of files that are no inputs of the run. They are treated like training events: outliers are excluded, and
    depths are vertical.

    Raises BadInputError that names the file; of the run's inputs, what is bad is left out, as in the run.
    """
    wanted = config.trainer.validation.events
    stream = config.stream.model_copy(
        update={"shuffle": True, "unit_events": wanted * READ_FACTOR, "batch_events": wanted * MOST_TRAINERS}
        | {"slot_mib": max(_SLOT_MIB, config.stream.slot_mib)}
    )
    which: Which = "held out" if config.stream.held_out else "all"
    sources = _held_out_files(config) if config.stream.held_out else _separate_files(config)
    report = refuse if config.trainer.validation.input else _leave_out
    missing = wanted
    for arrays in _shuffled(sources, config.stored_workload(), stream, config.seed, run_dir, which, report):
        taken = first_events(arrays, missing)
        num = len(taken.offsets) - 1
        if num:
            missing -= num
            yield cut(taken, stream)
        if not missing:
            return
    if missing == wanted:
        raise BadInputError(f"{_where(config)}: no usable event for the validation block")
    if missing and config.stream.held_out:
        logger.warning("%s: only %d held-out events for the validation block", _where(config), wanted - missing)


def _shuffled(
    sources: Sequence[SourceFile],
    workload: EventSchema,
    stream: StreamConfig,
    seed: int,
    run_dir: Path,
    which: Which,
    report: Report,
) -> Iterator[UnitArrays]:
    """Events of all files in random order, as far as a unit reaches. The arrays are valid until the next ones."""
    stage = stage_local(workload, stream, report)
    rest = numpy_stream(SharedPurpose.VALIDATION_FILES, seed).permutation(len(sources)).tolist()
    while rest:
        staged = staged_in_order(sources, rest, stage, stream.unit_events)
        rest = rest[len(staged) :]
        with contextlib.closing(read_units(staged, workload, stream, seed, run_dir, which, report)) as units:
            for arrays, _ in units:
                yield arrays


def _held_out_files(config: Config) -> list[SourceFile]:
    """Files with held-out events. Raises BadInputError if none is local."""
    inputs = config.trainer.validation.input or config.input
    with Remotes(config.remote_access()) as remotes:
        if config.trainer.validation.input:
            _require_local(inputs)
            return expand(inputs, remotes)
        paths = sorted(set(local_files([text.replace("{range}", "*") for text in inputs], remotes)))
    if not paths:
        raise BadInputError(
            f"stream.held_out = {config.stream.held_out}: the validation block is drawn from the local inputs of the"
            " run, and there is none here. Copy some of its files, and name these in trainer.validation.input: only"
            " their held-out events are used. Or set trainer.validation.events=0"
        )
    return [SourceFile(str(path), path.stat().st_size) for path in paths]


def _separate_files(config: Config) -> list[SourceFile]:
    """Validation files. Raises BadInputError for remote files, and for training files of the run."""
    inputs = config.trainer.validation.input
    _require_local(inputs)
    with Remotes(config.remote_access()) as remotes:
        files = expand(inputs, remotes)
        trained = set(local_files(config.input, remotes))
    for file in files:
        if Path(file.url).resolve() in trained:
            raise BadInputError(
                f"{file.url} is one of trainer.validation.input and of the run's inputs: move it out of these"
            )
    return files


def _require_local(inputs: Sequence[str]) -> None:
    for text in inputs:
        if local_path(text.removeprefix("file://")) is None:
            raise BadInputError(f"trainer.validation.input: {text} is not local; copy some files, and name these")


def _leave_out(reason: str) -> None:
    logger.warning("validation block: left out: %s", reason)


def _where(config: Config) -> str:
    inputs = config.trainer.validation.input
    return f"trainer.validation.input = {list(inputs)}" if inputs else "the run's inputs"


def local_files(inputs: Sequence[str], remotes: Remotes) -> Iterator[Path]:
    """Local files of a run's inputs, as far as visible here."""
    for text in named_inputs(inputs):
        if local_path(text.removeprefix("file://")) is not None:
            with contextlib.suppress(NothingFound):  # ranges, or the fetcher is on another machine
                yield from [Path(file.url).resolve() for file in expand([text], remotes)]
