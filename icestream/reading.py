"""Reader of events from files of any kind that a run can read, outside of a run.

It uses the code of the services: that of the fetcher to inspect a file, that of the decoder to read and check it like a
unit.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.files.inputs import expand, local_files, local_path
from common.files.local import named_inputs, none_usable
from common.files.remotes import Remotes
from common.invalid_events import lines_of_rules
from common.messages import Tally
from common.plan import SlotCapacity, SourceFile, StagedFile, Which, plan_block
from common.schema import EventSchema, UnitArrays
from common.slow_progress import SlowProgress, note
from common.text import shown, without_secrets
from common.unit_arrays import unit_arrays
from services.config.root import Config
from services.decoder.decode import Decode
from services.decoder.microbatch import microbatch_bounds
from services.fetcher.cache import Cache
from services.fetcher.staging import NotStaged, Stage
from workloads.base.interface import FileEvents, FileSettings, OrderedUnit
from workloads.base.random_streams import SharedPurpose, numpy_stream

logger = logging.getLogger(__name__)

_SLOT_MIB = 256.0


def file_settings(config: Config) -> FileSettings:
    """Return the settings for reading the inputs of a configuration."""
    return FileSettings(config.input, config.source, config.stream, config.remote_access(), config.fetcher.cache_dir)


def read_validation_events(config: Config, run_dir: Path) -> Iterator[UnitArrays]:
    """Sample of `trainer.validation.events` events, drawn with the run's seed, or all; in units of their own memory.

    With `stream.held_out` they are events held out of training, of the validation files or of the run's local inputs;
    else those of files that are no inputs of the run. They are treated like training events: outliers are excluded, and
    depths are vertical.

    Raises BadInputError that names the file; of the run's inputs, what is bad is left out, as in the run.
    """
    schema, inputs = config.stored_workload(), config.trainer.validation.input
    wanted = missing = config.trainer.validation.events
    stream = config.stream.model_copy(
        update={"shuffle": True, "unit_events": missing * READ_FACTOR, "batch_events": missing * MOST_TRAINERS}
        | {"slot_mib": max(_SLOT_MIB, config.stream.slot_mib)}
    )
    which: Which = "held_out" if config.stream.held_out else "all"
    where = f"trainer.validation.input = {list(inputs)}" if inputs else "the run's inputs"
    left_out: list[str] = []

    def leave_out(reason: str) -> None:
        logger.warning("validation block: left out: %s", reason)
        left_out.append(reason)

    report = refuse if inputs else leave_out
    settings = replace(file_settings(config), stream=stream)
    with Remotes(settings.access) as remotes:
        sources = _validation_files(config, remotes)
        order = numpy_stream(SharedPurpose.VALIDATION_FILES, config.seed).permutation(len(sources)).tolist()
        with staging(schema, settings, remotes, sources, report) as stage:
            while order and missing:
                staged = staged_in_order(sources, order, stage, stream.unit_events)
                order = order[len(staged) :]
                with closing(read_units(staged, schema, stream, config.seed, run_dir, which, report)) as units:
                    for arrays, _ in units:
                        taken = first_events(arrays, missing)
                        if num := len(taken.offsets) - 1:
                            missing -= num
                            yield cut(taken, stream)
                        if not missing:
                            return
    if missing == wanted:
        raise BadInputError(": ".join([f"{where}: no usable event for the validation block", *left_out[:1]]))
    if config.stream.held_out:
        logger.warning("%s: only %d held-out events for the validation block", where, wanted - missing)


def _validation_files(config: Config, remotes: Remotes) -> list[SourceFile]:
    """Files of the validation block: the validation files, else, with held-out events, the run's local inputs.

    Raises BadInputError for remote files, for training files without held-out events, and if there is none.
    """
    inputs = config.trainer.validation.input
    for text in inputs:
        if local_path(text.removeprefix("file://")) is None:
            raise BadInputError(f"trainer.validation.input: {text} is not local; copy some files, and name these")
    if inputs or not config.stream.held_out:
        files = expand(inputs, remotes)
        trained = set() if config.stream.held_out else set(local_files(config.input, remotes))
        for file in files:
            if Path(file.url).resolve() in trained:
                raise BadInputError(
                    f"{file.url} is one of trainer.validation.input and of the run's inputs: move it out of these"
                )
        return files
    paths = sorted(set(local_files([text.replace("{range}", "*") for text in config.input], remotes)))
    if not paths:
        raise BadInputError(
            f"stream.held_out = {config.stream.held_out}: the validation block is drawn from the local inputs of the"
            " run, and there is none here. Copy some of its files, and name these in trainer.validation.input: only"
            " their held-out events are used. Or set trainer.validation.events=0"
        )
    return [SourceFile(str(path), path.stat().st_size) for path in paths]


READ_FACTOR = 16
"""Maximum events read, as a factor on the wanted ones: neighbours in a file may be from one shower."""

StageFile = Callable[[int, SourceFile], StagedFile]
"""Callback that brings a file to local disk and reads its footer. Raises BadInputError that names the file."""


Report = Callable[[str], None]
"""Callback for a fault of a file: it raises, or the file or row group is left out."""


def refuse(reason: str) -> None:
    """Raise BadInputError."""
    raise BadInputError(reason)


def staged_in_order(
    sources: Sequence[SourceFile], order: Sequence[int], stage: StageFile, enough_rows: int | None
) -> list[StagedFile]:
    """Files in this order, until they have ``enough_rows`` together, or all. Raises the errors of ``stage``."""
    staged: list[StagedFile] = []
    rows = 0
    for index in order:
        staged.append(stage(index, sources[index]))
        footer = staged[-1].footer
        rows += footer.rows if footer else 0
        if enough_rows is not None and rows >= enough_rows:
            break
    return staged


def read_units(
    staged: Sequence[StagedFile],
    workload: EventSchema,
    stream: StreamConfig,
    seed: int,
    run_dir: Path,
    which: Which = "all",
    report: Report = refuse,
) -> Generator[tuple[UnitArrays, Tally]]:
    """Events of each unit, in random order. The arrays are valid until the next ones are requested.

    ``which``: of the events, where `stream.held_out` holds some out of training. ``report`` gets the faults of files.
    """
    # Epoch 1: outliers are written to a file in epoch 0 only, and these don't belong to a run.
    stream = stream.model_copy(update={"part": which})
    capacity = SlotCapacity(workload, stream)
    units = plan_block(0, 0, 1, staged, capacity=capacity, stream=stream, seed=seed)
    with closing(ContentReader(workload)) as reader:
        decode = Decode(workload, stream, seed, run_dir, reader)
        for unit in units:
            particles = sum(part.particles for part in unit.parts)
            slot = np.empty(capacity.bytes_needed(max(unit.rows, 1), particles), np.uint8)
            layout, tally = decode(unit, slot)
            for bad in tally.bad:
                report(bad.reason)
            for line in lines_of_rules(tally.broken_rules):
                report(f"invalid {line}")
            yield unit_arrays(slot, workload, layout), tally


def first_events(arrays: UnitArrays, most: int) -> UnitArrays:
    """First ``most`` events, copied: the arrays are views of a large buffer."""
    num = min(most, len(arrays.offsets) - 1)
    num_particles = int(arrays.offsets[num])
    return UnitArrays(
        offsets=arrays.offsets[: num + 1].copy(),
        microbatch_bounds=np.array([0, num]),
        particle_columns={name: column[:num_particles].copy() for name, column in arrays.particle_columns.items()},
        event_columns={name: column[:num].copy() for name, column in arrays.event_columns.items()},
    )


def joined(many: Sequence[UnitArrays], stream: StreamConfig) -> UnitArrays:
    """Concatenated events, cut into microbatches like a unit."""
    counts = np.concatenate([np.diff(one.offsets) for one in many])
    together = UnitArrays(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        microbatch_bounds=np.array([0, len(counts)]),
        particle_columns={
            name: np.concatenate([one.particle_columns[name] for one in many]) for name in many[0].particle_columns
        },
        event_columns={
            name: np.concatenate([one.event_columns[name] for one in many]) for name in many[0].event_columns
        },
    )
    return cut(together, stream)


def cut(arrays: UnitArrays, stream: StreamConfig) -> UnitArrays:
    """Same events, cut into microbatches like a unit."""
    bounds = microbatch_bounds(arrays.offsets, stream.batch_events, stream.max_particles, stream.max_squared_particles)
    return replace(arrays, microbatch_bounds=bounds)


@contextmanager
def staging(
    schema: EventSchema,
    settings: FileSettings,
    remotes: Remotes,
    sources: Sequence[SourceFile],
    report: Report = refuse,
) -> Iterator[StageFile]:
    """Callback that brings files to local disk, where they stay until the end of the block; ``report`` gets bad ones.

    Local ones are used in place, remote ones are stored in `fetcher.cache_dir`, or in a temporary directory.
    """
    with tempfile.TemporaryDirectory(prefix="icestream-evaluate-") as folder:
        # The run's own cache directory may be on another machine: local files don't need one.
        has_remote = any(local_path(source.url) is None for source in sources)
        cache_dir = (has_remote and settings.cache_dir) or Path(folder) / "cache"
        with closing(Cache(cache_dir, Path(folder))) as cache:
            stage = Stage(cache, schema, settings.stream, SlotCapacity(schema, settings.stream), remotes.fetch)

            def bring(index: int, source: SourceFile) -> StagedFile:
                if local_path(source.url) is None:
                    note(f"{shown(source.url)}: {source.size_bytes / 2**20:,.1f} MiB")
                found = stage(index, source, None)
                if isinstance(found, NotStaged):
                    raise BadInputError(f"{found.reason}; try again later")
                if found.footer is None:
                    report(found.reason)
                return found

            try:
                yield bring
            finally:
                for source in sources:
                    if local_path(source.url) is None:
                        cache.drop(source)


def trained_on(sources: Sequence[SourceFile], trained_inputs: Sequence[str], remotes: Remotes) -> list[str]:
    """Files that are among the inputs of a run, as far as known here.

    No server is asked for a listing: a remote file is one of them if an input names it, its folder, or a glob that it
    matches.
    """
    inputs = [text.replace("{range}", "*") for text in named_inputs(trained_inputs)]
    local = set(local_files(inputs, remotes))
    found = []
    for source in sources:
        path = local_path(source.url)
        if path.resolve() in local if path else any(_names(text, source.url) for text in inputs):
            found.append(shown(source.url))
    return found


def _names(text: str, url: str) -> bool:
    return url == text or url.startswith(text.rstrip("/") + "/") or fnmatch.fnmatchcase(url, text)


@contextmanager
def sampled_events(
    schema: EventSchema,
    settings: FileSettings,
    *,
    events: int,
    seed: int,
    trained_inputs: Sequence[str],
    held_out: float = 0.0,
    which: Which | None = None,
) -> Iterator[FileEvents]:
    """Sample of the files' events: see Front.read_events."""
    settings = replace(settings, stream=settings.stream.model_copy(update={"held_out": held_out}))
    with Remotes(settings.access) as remotes:
        sources = expand(settings.inputs, remotes)
        seen = trained_on(sources, trained_inputs, remotes)
        if which is None:
            which = "held_out" if held_out and seen else "all"
        if held_out and which == "held_out":
            seen = []
        bad: list[str] = []
        share = {"all": 1.0, "held_out": held_out or 1.0, "train": 1.0 - held_out}[which]
        enough_rows = int(READ_FACTOR * events / share) if events else None
        order = numpy_stream(SharedPurpose.SAMPLE_FILES, seed).permutation(len(sources)).tolist()
        with staging(schema, settings, remotes, sources, bad.append) as stage:
            staged = staged_in_order(sources, order, stage, enough_rows)
            total_rows = sum(file.footer.rows for file in staged if file.footer)
            wanted = min(events or total_rows, total_rows)
            tallies: list[Tally] = []
            parts: list[UnitArrays] = []
            rows = taken = 0
            units = read_units(staged, schema, settings.stream, seed, Path(os.devnull), which, bad.append)
            with closing(units), SlowProgress("reading: rows", total_rows) as progress:
                for arrays, tally in units:
                    tallies.append(tally)
                    progress.advance(tally.rows_read)
                    rows += tally.rows_read
                    # From each unit in proportion to its rows, as far as it has so many events.
                    share = min(-(-wanted * rows // max(total_rows, 1)), wanted) - taken
                    num = min(share, len(arrays.offsets) - 1)
                    if num > 0:
                        taken += num
                        parts.append(first_events(arrays, num))
                    if taken == wanted:
                        break
            num_usable = sum(file.footer is not None for file in staged)
            if not num_usable:
                raise none_usable(sorted(bad))
            if not parts:
                more = f" and {len(sources) - 1} more files" if len(sources) > 1 else ""
                raise BadInputError(f"{without_secrets(sources[0].url)}{more}: no event in it")
            paths = {file.file: Path(file.path) for file in staged}
            yield FileEvents(joined(parts, settings.stream), paths, tallies, num_usable, len(sources), seen, which, bad)


@contextmanager
def units_in_order(schema: EventSchema, settings: FileSettings) -> Iterator[Iterator[OrderedUnit]]:
    """Give the units of all files, in order: see Front.each_unit."""
    settings = replace(settings, stream=settings.stream.model_copy(update={"shuffle": False}))
    with Remotes(settings.access) as remotes, closing(_units(schema, settings, remotes)) as units:
        yield units


def _units(schema: EventSchema, settings: FileSettings, remotes: Remotes) -> Generator[OrderedUnit]:
    sources = expand(settings.inputs, remotes)
    for index, source in enumerate(sources):
        with staging(schema, settings, remotes, [source]) as stage:
            staged = stage(index, source)
            rows = staged.footer.rows if staged.footer else 0
            read = 0
            with closing(read_units([staged], schema, settings.stream, 0, Path(os.devnull))) as units:
                for arrays, tally in units:
                    read += tally.rows_read
                    yield OrderedUnit(arrays, tally, shown(source.url), (index + read / max(rows, 1)) / len(sources))
