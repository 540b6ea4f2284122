"""Description of a local file: kind, layout, row groups, counts, ranges and first events; or its problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, StrictBool, StrictInt

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.files.checks import without_fillers
from common.files.file_kind import file_kind
from common.files.gather import offsets_of
from common.files.parquet.arrow_file import ArrowFile
from common.files.parquet.columns import inside, read_names
from common.files.rows import BadRowsError, RaggedRows
from common.files.whole_file import plan_file
from common.input_errors import raise_if_machine
from common.invalid_events import lines_of_rules, sum_of_rules
from common.messages import InvalidEvents, Part
from common.outside_values import OutsideValues
from common.schema import Column, EventSchema
from common.unit_arrays import Array
from icestream.commands.inspect.layout import ColumnLayout, layout_of
from icestream.commands.inspect.spread import Spread

Number = StrictBool | StrictInt | float
"""Number of the type of its column."""

_PROBLEMS = 10
_FIRST_PARTICLES = 3


class Range(BaseModel):
    """Minimum, median and maximum of one number."""

    name: str
    least: float
    median: float
    largest: float


class FirstEvent(BaseModel):
    """Event as read by the pipeline."""

    ids: dict[str, int]
    event: dict[str, Number]
    num_particles: int
    particles: list[dict[str, Number]]
    """First few particles."""


class Description(BaseModel):
    """Description of one file."""

    name: str
    size_bytes: int
    kind: str = ""
    layout: list[ColumnLayout] = []
    row_groups: list[int] = []
    """Rows of each row group; for HDF5, of each span read instead."""
    events: int = 0
    particles: int = 0
    """Number of particles without fillers."""
    particles_bound: int = 0
    """Number of particles by the footer alone: an upper bound in Parquet, exact including fillers in HDF5."""
    dropped: int = 0
    """Number of fillers for "no particle", and of null particles."""
    empty: int = 0
    null_events: int = 0
    nulls: dict[str, int] = {}
    """Number of null values in each Parquet column."""
    multiplicity: Range | None = None
    multiplicity_above: dict[str, float] = {}
    """Numbers of particles exceeded by 10, 1 and 0.1 % of the events."""
    ranges: list[Range] = []
    first_events: list[FirstEvent] = []
    problems: list[str] = []
    """Reasons that the file, or parts of it, can't be used, with the settings to change."""


@dataclass
class _Spreads:
    """Values of every number seen so far."""

    counts: Spread = field(default_factory=Spread)
    fields: dict[str, Spread] = field(default_factory=dict)

    def add(self, rows: RaggedRows, workload: EventSchema) -> None:
        self.counts.add(np.delete(rows.counts, rows.invalid_rows))
        for column in workload.read_columns:
            values: Array = (rows.event_columns if column.per == "event" else rows.particle_columns)[column.name]
            if rows.is_null is not None and column.per == "event":
                values = values[~rows.is_null]
            for i, name in enumerate(column.fields):
                self.fields.setdefault(f"{column.name}.{name}", Spread()).add(values[:, i])


def describe(
    path: Path,
    name: str,
    workload: EventSchema,
    *,
    num_events: int,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> Description:
    """Description of a local file, which is read once in full, with its problems.

    Raises MachineError if the file can't be opened.
    ``on_rows`` is called with the rows read and the total rows.
    """
    try:
        found = Description(name=name, size_bytes=path.stat().st_size)
    except OSError as error:
        raise_if_machine(error, path)
        raise
    try:
        found.kind = file_kind(path)
        found.layout = layout_of(path, found.kind, workload)
        stream = StreamConfig(shuffle=False)
        workload = workload.with_all_stored()
        source = workload.source.model_copy(update={"nulls": "empty"})  # they are counted
        workload = replace(workload, source=source)
        footer, parts = plan_file(path, workload, stream, name=name)
    except BadInputError as error:
        found.problems.append(str(error))
        return found
    found.row_groups = [group.rows for group in footer.row_groups]
    found.events = footer.rows
    found.particles_bound = sum(group.particles for group in footer.row_groups)
    if found.kind == "Parquet":
        found.nulls = _nulls(path, workload)
    spreads = _read_all(parts, found, workload, num_events, on_rows)
    if spreads.counts.num:
        found.multiplicity = _range("particles of an event", spreads.counts)
        found.multiplicity_above = {f"{share:g} %": spreads.counts.quantile(1 - share / 100) for share in (10, 1, 0.1)}
        found.ranges = [_range(field_name, spread) for field_name, spread in spreads.fields.items() if spread.num]
    return found


def _read_all(
    parts: Sequence[Part],
    found: Description,
    workload: EventSchema,
    num_events: int,
    on_rows: Callable[[int, int], None],
) -> _Spreads:
    spreads, outside = _Spreads(), OutsideValues(workload)
    with_fillers = tuple(replace(rule, drop_unless_positive=False) for rule in workload.rules)
    reader = ContentReader(replace(workload, rules=with_fillers))
    done = num_problems = 0
    invalid: list[InvalidEvents] = []
    for part in parts:
        row = part.file_row + part.first_row
        try:
            pieces = reader.read([part])
        except BadRowsError as error:
            num_problems += 1
            if num_problems <= _PROBLEMS:
                found.problems.append(str(error))
            pieces = []
        for piece in pieces:
            outside.add(piece)
            rows = without_fillers(piece, workload)
            spreads.add(rows, workload)
            found.particles += int(rows.counts.sum())
            found.dropped += rows.particles_dropped
            null = np.zeros(len(rows.counts), np.bool_) if rows.is_null is None else rows.is_null
            for one in rows.invalid:
                example = f"row {row + int(one.rows[0])} of the file: {one.found}"
                invalid.append(InvalidEvents(one.rule, len(one.rows), (example,)))
            row += len(rows.counts)
            found.null_events += int(null.sum()) - len(rows.invalid_rows)
            found.empty += int(((rows.counts == 0) & ~null).sum())
            missing = num_events - len(found.first_events)
            if missing > 0:
                found.first_events += [_event(rows, int(row), workload) for row in np.flatnonzero(~null)[:missing]]
        done += part.rows
        on_rows(done, found.events)
    reader.close()
    if num_problems > _PROBLEMS:
        found.problems.append(f"… and {num_problems - _PROBLEMS} more parts")
    found.problems += [f"a run sets aside {line}" for line in lines_of_rules(sum_of_rules(invalid))]
    found.problems += outside.problems()
    return spreads


def _event(rows: RaggedRows, row: int, workload: EventSchema) -> FirstEvent:
    ids: dict[str, int] = {}
    event: dict[str, Number] = {}
    offsets = offsets_of(rows.counts[: row + 1])
    particles: list[dict[str, Number]] = [{} for _ in range(min(int(rows.counts[row]), _FIRST_PARTICLES))]
    for source in workload.source_columns:
        column = workload.column(source.into)
        fields = range(len(column.fields)) if source.field is None else [source.field]
        if column.per == "particle":
            first = offsets[-2]
            values = rows.particle_columns[column.name][first : first + len(particles)]
            for particle, value in zip(particles, values.tolist(), strict=True):
                particle |= {_shown_name(column, i, workload): value[i] for i in fields}
        else:
            value = rows.event_columns[column.name][row].tolist()
            if source.field is not None and np.dtype(column.dtype).kind in "iu":
                ids[source.name] = value[source.field]
            else:
                event |= {_shown_name(column, i, workload): value[i] for i in fields}
    return FirstEvent(ids=ids, event=event, num_particles=int(rows.counts[row]), particles=particles)


def _shown_name(column: Column, field: int, workload: EventSchema) -> str:
    """Name of the field, with its column's if the name is not unique."""
    name = column.fields[field]
    same = sum(name in other.fields for other in workload.columns_per(column.per))
    return name if same == 1 else f"{column.name}.{name}"


def _nulls(path: Path, workload: EventSchema) -> dict[str, int]:
    """Number of null values in each source column; null lists for a column per particle."""
    nulls = {source.name: 0 for source in workload.source_columns}
    try:
        with ArrowFile(path) as file:
            schema = file.schema_arrow
            sources = [source for source in workload.source_columns if source.path[0] in schema.names]
            if not any(schema.field(source.path[0]).nullable for source in sources):
                return nulls
            leaves = [file.schema.column(i).path for i in range(len(file.schema))]
            names = list(read_names(schema, leaves, workload).values())
            for batch in file.iter_batches(columns=names, use_threads=False):
                for source in sources:
                    values, _ = inside(batch.column(source.path[0]), source.path[1:])
                    nulls[source.name] += values.null_count
    except (pa.ArrowException, OSError):
        pass  # the reader reports the damage and its location
    return nulls


def _range(name: str, spread: Spread) -> Range:
    return Range(name=name, least=spread.least, median=spread.quantile(0.5), largest=spread.largest)


def as_json(descriptions: list[Description]) -> list[dict[str, Any]]:
    """Descriptions as JSON values, for `--json`."""
    return [description.model_dump(mode="json") for description in descriptions]
