"""All events of files of any kind that a run can read, in order."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from common.files.inputs import expand
from common.files.remotes import Remotes
from common.redact import shown
from common.schema import EventSchema
from icestream.reading.events import read_units
from icestream.reading.staging import staging
from workloads.base.front import FileSettings, OrderedUnit


@contextmanager
def units_in_order(schema: EventSchema, settings: FileSettings) -> Iterator[Iterator[OrderedUnit]]:
    """Units of all files: see Front.each_unit."""
    stream = settings.stream.model_copy(update={"shuffle": False})
    with (
        Remotes(settings.access) as remotes,
        closing(_units(schema, replace(settings, stream=stream), remotes)) as units,
    ):
        yield units


def _units(schema: EventSchema, settings: FileSettings, remotes: Remotes) -> Generator[OrderedUnit]:
    sources = expand(settings.inputs, remotes)
    for index, source in enumerate(sources):
        with staging(schema, settings, remotes, [source]) as stage:
            staged = [stage(index, source)]
            with closing(read_units(staged, schema, settings.stream, 0, Path(os.devnull))) as units:
                rows = sum(one.footer.rows for one in staged if one.footer)
                read = 0
                for arrays, tally in units:
                    read += tally.rows_read
                    yield OrderedUnit(arrays, tally, shown(source.url), (index + read / max(rows, 1)) / len(sources))
