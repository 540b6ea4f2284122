"""Command `icestream inspect`: the content of files, and the settings to use them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import click
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, StrictBool, StrictInt

from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError, raise_if_machine
from common.files.by_content import ContentReader, plan_file
from common.files.hdf5 import hdf5_errors
from common.files.inputs import expand, local_file
from common.files.local import file_kind
from common.files.parquet.columns import inside, read_names
from common.files.parquet.footer import DamagedFooter, parse_footer
from common.files.remotes import Remotes
from common.files.rows import BadRowsError, RaggedRows, offsets_of, without_fillers
from common.invalid_events import OutsideValues, lines_of_rules, sum_of_rules
from common.messages import InvalidEvents, Part
from common.options import config_options, input_option
from common.process import in_a_copy
from common.schema import Column, EventSchema
from common.text import printable, shown
from common.unit_arrays import Array
from icestream.commands.convert import with_progress
from icestream.run_config import config_without_run

Number = StrictBool | StrictInt | float
"""Number of the type of its column."""

_PROBLEMS = 10
_FIRST_PARTICLES = 3
_MOST_KEPT = 1 << 18
_LONGEST = 4000
_CODECS = {0: "uncompressed", 1: "snappy", 2: "gzip", 3: "lzo", 4: "brotli", 5: "lz4", 6: "zstd", 7: "lz4"}


class ColumnLayout(BaseModel):
    """Column or dataset of a file."""

    name: str
    type: str
    storage: str
    """Compression, or chunks and filters."""
    is_read: bool
    """True if the workload reads it."""


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


@click.command(epilog="Example: icestream inspect data/*.h5 --events 5")
@click.argument("files", nargs=-1, metavar="FILE...")
@input_option
@click.option(
    "--events", "num_events", type=click.IntRange(min=0), default=3, show_default=True, help="Events to print."
)
@click.option("--json", "in_json", is_flag=True, help="Print JSON instead.")
@config_options
def inspect(
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    num_events: int,
    in_json: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Print the content of files: kind, layout, row groups, counts, ranges and first events; and their problems.

    FILE: files, directories, globs or URLs, of HDF5 or Parquet. Each is read once in full; a remote one is fetched into
    a temporary directory. The exit code is 2 if one can't be used as it is.
    """
    inputs = (*files, *inputs)
    if not inputs:
        raise click.UsageError("Missing argument 'FILE...' (or -i).")
    config = config_without_run(toml, assignments, inputs)
    workload = config.stored_workload()
    found: list[Description] = []
    with Remotes(config.remote_access()) as remotes:
        for source in expand(inputs, remotes):
            name = shown(source.url)
            try:
                with local_file(source, remotes) as path:
                    describes = partial(describe, path, name, workload, num_events=num_events)
                    found.append(in_a_copy(partial(with_progress, describes, name), Description, name))
            except IcestreamError as error:  # it is not available at all
                found.append(Description(name=name, size_bytes=source.size_bytes, problems=[shown(str(error))]))
            if not in_json:
                click.echo("\n".join(lines(found[-1])))
    if in_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in found], indent=2))
    bad = [one for one in found if one.problems]
    if bad:
        name, problem = bad[0].name, bad[0].problems[0]
        first = problem if problem.startswith(name) else f"{name}: {problem}"
        raise BadInputError(f"{len(bad)} of {len(found)} files can't be used as they are; the first: {first}")


# ------------------------------------------------------------------ content


class Spread:
    """Distribution of numbers: exact minimum and maximum, quantiles of up to 262,144 numbers or else an even sample."""

    def __init__(self) -> None:
        self.num = 0
        self.least = np.inf
        self.largest = -np.inf
        self._every = 1
        self._kept: list[Array] = []
        self._num_kept = 0

    def add(self, values: Array) -> None:
        """Add numbers. (N,)."""
        if not len(values):
            return
        if values.dtype.kind != "f":
            values = values.astype(np.float64)  # a quantile may be between two integers
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        taken = values[-self.num % self._every :: self._every].copy()
        self.num += len(values)
        self._kept.append(taken)
        self._num_kept += len(taken)
        while self._num_kept > _MOST_KEPT:  # keep every second number
            self._kept = [np.concatenate(self._kept)[::2]]
            self._num_kept = len(self._kept[0])
            self._every *= 2

    def quantile(self, share: float) -> float:
        """Return the number below which that share of them lies. At least one must have been added."""
        return float(np.quantile(np.concatenate(self._kept), share))

    def range(self, name: str) -> Range:
        """Return the ends and the median. At least one number must have been added."""
        return Range(name=name, least=self.least, median=self.quantile(0.5), largest=self.largest)


def describe(
    path: Path,
    name: str,
    workload: EventSchema,
    *,
    num_events: int,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> Description:
    """Return a description of a local file, which is read once in full, with its problems.

    Raises MachineError if the file can't be opened. ``on_rows`` is called with the rows read and the total rows.
    """
    try:
        found = Description(name=name, size_bytes=path.stat().st_size)
    except OSError as error:
        raise_if_machine(error, path)
        raise
    try:
        found.kind = file_kind(path)
        found.layout = (_parquet_layout if found.kind == "Parquet" else _hdf5_layout)(path, workload)
        workload = workload.with_all_stored()
        source = workload.source.model_copy(update={"nulls": "empty"})  # they are counted
        workload = replace(workload, source=source)
        footer, parts = plan_file(path, workload, StreamConfig(shuffle=False), name=name)
    except BadInputError as error:
        found.problems.append(str(error))
        return found
    found.row_groups = [group.rows for group in footer.row_groups]
    found.events = footer.rows
    found.particles_bound = sum(group.particles for group in footer.row_groups)
    if found.kind == "Parquet":
        found.nulls = _nulls(path, workload)
    counts, fields = _read_all(parts, found, workload, num_events, on_rows)
    if counts.num:
        found.multiplicity = counts.range("particles of an event")
        found.multiplicity_above = {f"{share:g} %": counts.quantile(1 - share / 100) for share in (10, 1, 0.1)}
        found.ranges = [spread.range(field) for field, spread in fields.items() if spread.num]
    return found


def _read_all(
    parts: Sequence[Part],
    found: Description,
    workload: EventSchema,
    num_events: int,
    on_rows: Callable[[int, int], None],
) -> tuple[Spread, dict[str, Spread]]:
    """Read every row into the description; return the spread of particles of an event, and of each number."""
    counts, fields, outside = Spread(), defaultdict[str, Spread](Spread), OutsideValues(workload)
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
            null = np.zeros(len(rows.counts), np.bool_) if rows.is_null is None else rows.is_null
            counts.add(np.delete(rows.counts, rows.invalid_rows))
            for column in workload.read_columns:
                of_events = column.per == "event"
                values = rows.event_columns[column.name][~null] if of_events else rows.particle_columns[column.name]
                for i, name in enumerate(column.fields):
                    fields[f"{column.name}.{name}"].add(values[:, i])
            found.particles += int(rows.counts.sum())
            found.dropped += rows.particles_dropped
            for one in rows.invalid:
                example = f"row {row + int(one.rows[0])} of the file: {one.found}"
                invalid.append(InvalidEvents(one.rule, len(one.rows), (example,)))
            row += len(rows.counts)
            found.null_events += int(null.sum()) - len(rows.invalid_rows)
            found.empty += int(((rows.counts == 0) & ~null).sum())
            missing = max(0, num_events - len(found.first_events))
            found.first_events += [_event(rows, int(first), workload) for first in np.flatnonzero(~null)[:missing]]
        done += part.rows
        on_rows(done, found.events)
    reader.close()
    if num_problems > _PROBLEMS:
        found.problems.append(f"… and {num_problems - _PROBLEMS} more parts")
    found.problems += [f"a run sets aside {line}" for line in lines_of_rules(sum_of_rules(invalid))]
    found.problems += outside.problems()
    return counts, fields


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
    """Return the name of the field, with its column's if the name is not unique."""
    name = column.fields[field]
    same = sum(name in other.fields for other in workload.columns_per(column.per))
    return name if same == 1 else f"{column.name}.{name}"


def _nulls(path: Path, workload: EventSchema) -> dict[str, int]:
    """Count the null values in each source column; null lists for a column per particle."""
    nulls = {source.name: 0 for source in workload.source_columns}
    try:
        with pq.ParquetFile(path) as file:
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


# ------------------------------------------------------------------ layout, also of a file that can't be used


def _parquet_layout(path: Path, workload: EventSchema) -> list[ColumnLayout]:
    try:
        footer = parse_footer(path)
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
    except DamagedFooter as error:
        raise BadInputError(f"damaged: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"truncated, or not Parquet: {' '.join(str(error).split())[:300]}") from None
    names = {source.path[0] for source in workload.source_columns}
    codecs = defaultdict[str, set[str]](set)
    for group in footer.row_groups:
        for column in group.columns:
            codecs[column.path[0]].add(_CODECS.get(column.codec, f"codec {column.codec}"))
    return [
        ColumnLayout(
            name=field.name,
            # Arrow's text of a type, without the names of list elements.
            type=re.sub(r"(list(?:_view)?<)[^:<>]*: ", r"\1", str(field.type)).replace(" not null", ""),
            storage=", ".join(sorted(codecs[field.name])) or "no rows",
            is_read=field.name in names,
        )
        for field in schema
    ]


def _hdf5_layout(path: Path, workload: EventSchema) -> list[ColumnLayout]:
    tables = workload.tables
    names = {tables.events, tables.particles, tables.counts} if tables else set()
    layout = []
    with hdf5_errors("truncated, or damaged"), h5py.File(path, "r", locking=False) as file:
        for name in file:
            kind, storage, is_read = "group", "", False
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                kind = "link to elsewhere"
            elif isinstance(dataset := file[name], h5py.Dataset):
                filters = [dataset.compression, "shuffle" * dataset.shuffle, "fletcher32" * dataset.fletcher32]
                chunks = f"chunks {dataset.chunks}" if dataset.chunks else "contiguous"
                kind, is_read = f"{dataset.dtype} {dataset.shape}", name in names
                storage = ", ".join([chunks, *filter(None, filters)])
            layout.append(ColumnLayout(name=name, type=kind, storage=storage, is_read=is_read))
    return layout


# ------------------------------------------------------------------ text


def lines(found: Description) -> list[str]:
    """Return printable lines, of which the first names the file: names of columns may contain any character."""
    text = [f"{found.name}: {found.kind or 'unknown'}, {found.size_bytes / 2**20:,.2f} MiB"]
    if found.layout:
        width = max(len(column.name) for column in found.layout)
        text += [
            f"  {column.name:<{width}}  {column.type}  {column.storage}" + ("" if column.is_read else "  (not read)")
            for column in found.layout
        ]
    if found.row_groups:
        rows = found.row_groups
        name = "row groups" if found.kind == "Parquet" else "spans"
        text.append(
            f"  {len(rows):,} {name} of {min(rows):,} / {median(rows):,.0f} / {max(rows):,} rows "
            "(least / median / most)"
        )
    if found.events:
        exact = "at most " if found.kind == "Parquet" else ""
        share = found.empty / found.events
        text.append(f"  {found.events:,} events, {found.empty:,} of them empty ({share:.1%})")
        text.append(
            f"  {found.particles:,} particles"
            + (f", {found.dropped:,} fillers and nulls dropped" if found.dropped else "")
            + f" (the footer says {exact}{found.particles_bound:,})"
        )
    nulls = {name: number for name, number in found.nulls.items() if number}
    if nulls:
        what = ", ".join(f"{number:,} of {name}" for name, number in nulls.items())
        text.append(f'  nulls: {what}; a run sets these events aside as invalid, unless source.nulls = "empty"')
    ranges = ([found.multiplicity] if found.multiplicity else []) + found.ranges
    if ranges:
        width = max(len(one.name) for one in ranges)
        text.append(f"  {'':<{width}}{'least':>16}{'median':>16}{'largest':>16}")
        text += [f"  {one.name:<{width}}{one.least:>16,.6g}{one.median:>16,.6g}{one.largest:>16,.6g}" for one in ranges]
    if found.multiplicity_above:
        above = ", ".join(f"{share} have more than {count:,.0f}" for share, count in found.multiplicity_above.items())
        text.append(f"  particles of an event: {above}")
    for number, event in enumerate(found.first_events):
        ids = ", ".join(f"{name} {value}" for name, value in event.ids.items())
        columns = f"{ids}; {_fields(event.event)}" if ids else _fields(event.event)
        text.append(f"  event {number}: {columns}; {event.num_particles:,} particles")
        text += [f"    {_fields(particle)}" for particle in event.particles]
        if event.num_particles > len(event.particles):
            text.append(f"    … and {event.num_particles - len(event.particles):,} more")
    text += [f"  PROBLEM: {problem}" for problem in found.problems]
    return [printable(line, _LONGEST) for line in text]


def _fields(values: dict[str, Number]) -> str:
    return ", ".join(f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in values.items())
