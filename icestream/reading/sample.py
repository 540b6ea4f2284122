"""Sample of events from files of any kind that a run can read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from common.errors import BadInputError
from common.files.bad_file import none_usable
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.held_out import Which
from common.messages import Tally
from common.plan import SourceFile
from common.redact import without_secrets
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from common.unit_arrays import UnitArrays
from icestream.reading.events import (
    READ_FACTOR,
    StageFile,
    joined,
    read_units,
    share_of_each,
    staged_in_random_order,
)
from icestream.reading.staging import staging, trained_on
from workloads.base.front import FileEvents, FileSettings


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
            which = "held out" if held_out and seen else "all"
        if held_out and which == "held out":
            seen = []
        bad: list[str] = []
        with staging(schema, settings, remotes, sources, bad.append) as stage:
            yield _sample(schema, settings, sources, stage, events, seed, seen, which, bad)


def _sample(
    schema: EventSchema,
    settings: FileSettings,
    sources: Sequence[SourceFile],
    stage: StageFile,
    events: int,
    seed: int,
    seen: Sequence[str],
    which: Which,
    bad: list[str],
) -> FileEvents:
    """Sample of the files. ``bad``: reasons of the files that ``stage`` found bad; it grows by those of row groups."""
    held_out = settings.stream.held_out
    share = {"all": 1.0, "held out": held_out or 1.0, "trained": 1.0 - held_out}[which]
    staged = staged_in_random_order(sources, stage, int(READ_FACTOR * events / share) if events else None, seed)
    total_rows = sum(file.footer.rows for file in staged if file.footer)
    tallies: list[Tally] = []
    units = read_units(staged, schema, settings.stream, seed, Path(os.devnull), which, bad.append)
    with closing(units), SlowProgress("reading: rows", total_rows) as progress:
        wanted = min(events or total_rows, total_rows)
        parts = list(share_of_each(_counted(units, tallies, progress), wanted, total_rows))
    num_usable = sum(file.footer is not None for file in staged)
    if not num_usable:
        raise none_usable(sorted(bad))
    if not parts:
        raise BadInputError(f"{_names(sources)}: no event in it")
    return FileEvents(
        joined(parts, settings.stream),
        {file.file: Path(file.path) for file in staged},
        tallies,
        num_usable,
        len(sources),
        seen,
        which,
        bad,
    )


def _counted(
    units: Iterable[tuple[UnitArrays, Tally]], tallies: list[Tally], progress: SlowProgress
) -> Iterator[tuple[UnitArrays, Tally]]:
    for arrays, tally in units:
        tallies.append(tally)
        progress.advance(tally.rows_read)
        yield arrays, tally


def _names(sources: Sequence[SourceFile]) -> str:
    first = without_secrets(sources[0].url)
    return first if len(sources) == 1 else f"{first} and {len(sources) - 1} more files"
