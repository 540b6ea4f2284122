"""Conversion of one file of any layout to the fastest Parquet layout, a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.config import StreamConfig
from common.errors import BadInputError
from common.files.gather import offsets_of
from common.files.layout import Compression, schema_of, to_table, writer_options
from common.files.rows import BadRowsError, RaggedRows
from common.files.whole_file import plan_file, rows_of
from common.messages import Part
from common.schema import EventSchema

_MOST_PARTICLES = 1 << 22
"""Maximum particles of a row group, which is held in memory before it is written."""


@dataclass(frozen=True)
class Converted:
    """Result of a conversion, with the fate of the file's events: rows_in = events + null_events."""

    rows_in: int
    events: int
    empty: int
    """Number of events without particles, included in ``events``."""
    null_events: int
    """Number of rows without an event (`source.nulls = "empty"`), which are omitted."""
    particles: int
    dropped: int
    """Number of fillers for "no particle", and of null particles."""
    bytes_in: int
    bytes_out: int


def convert_file(
    path: Path,
    out: Path,
    workload: EventSchema,
    *,
    rows_per_group: int,
    compression: Compression,
    force: bool = False,
    name: str = "",
    part: Path | None = None,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> Converted:
    """Write ``out``, completely or not at all. All numbers named in `source.fields` are kept, in the file's order.

    ``part``: the unfinished file's name, which no other writer has.
    ``on_rows`` is called with the rows read and the total rows. Raises BadInputError that names the file, as ``name``
    if given, or the obstacle.
    """
    if out.exists() and (not force or out.samefile(path)):
        raise BadInputError(f"{out} exists: choose another name" + ("" if force else ", or overwrite it with --force"))
    workload = workload.with_all_stored()
    stream = StreamConfig(shuffle=False, unit_events=rows_per_group)
    try:
        footer, parts = plan_file(path, workload, stream, name=name or str(path))
    except BadInputError as error:
        raise BadInputError(f"{name or path}: {error}") from None
    return write_rows(
        out,
        workload.in_own_layout(),
        _pieces(parts, workload),
        rows=footer.rows,
        rows_per_group=rows_per_group,
        compression=compression,
        bytes_in=path.stat().st_size,
        part=part,
        on_rows=on_rows,
    )


def write_rows(
    out: Path,
    workload: EventSchema,
    pieces: Iterator[RaggedRows],
    *,
    rows: int,
    rows_per_group: int,
    compression: Compression,
    bytes_in: int,
    on_rows: Callable[[int, int], None],
    part: Path | None = None,
    notes: Mapping[str, str] | None = None,
) -> Converted:
    """Write ``out`` from ``rows`` rows in all, completely or not at all. ``notes`` are kept in its footer."""
    out.parent.mkdir(parents=True, exist_ok=True)
    schema = schema_of(workload)
    total = Converted(rows, 0, 0, 0, 0, 0, bytes_in, 0)
    with replacing(out, durable=False, mode=AS_UMASK_SAYS, part=part or part_of_one_writer(out)) as new:
        with pq.ParquetWriter(new, schema, **writer_options(schema, compression)) as writer:
            for group, num_null, dropped in _groups(pieces, rows_per_group, rows, on_rows):
                counts = np.concatenate([piece.counts for piece in group])
                if len(counts):
                    writer.write_table(to_table(group, workload), row_group_size=len(counts))
                total = replace(
                    total,
                    events=total.events + len(counts),
                    empty=total.empty + int((counts == 0).sum()),
                    null_events=total.null_events + num_null,
                    particles=total.particles + int(counts.sum()),
                    dropped=total.dropped + dropped,
                )
            writer.add_key_value_metadata(notes or {})
        bytes_out = new.stat().st_size
    assert total.events + total.null_events == total.rows_in
    return replace(total, bytes_out=bytes_out)


def _pieces(parts: Sequence[Part], workload: EventSchema) -> Iterator[RaggedRows]:
    """Rows of the file in order, a part at a time."""
    try:
        yield from rows_of(parts, workload)
    except BadRowsError as error:
        raise BadInputError(str(error)) from None


def _groups(
    pieces: Iterator[RaggedRows], rows_per_group: int, rows: int, on_rows: Callable[[int, int], None]
) -> Iterator[tuple[Sequence[RaggedRows], int, int]]:
    """Pieces of each row group, with its number of omitted rows without an event, and of dropped particles."""
    group: list[RaggedRows] = []
    num_rows = num_particles = num_null = dropped = done = 0
    for read in pieces:
        done += len(read.counts)
        num_null += 0 if read.is_null is None else int(read.is_null.sum())
        dropped += read.particles_dropped
        piece = read if read.is_null is None else _rows(read, ~read.is_null)
        first = 0
        while first < len(piece.counts):
            end = min(len(piece.counts), first + rows_per_group - num_rows)
            group.append(_slice(piece, first, end))
            num_rows += end - first
            num_particles += int(group[-1].counts.sum())
            first = end
            if num_rows == rows_per_group or num_particles >= _MOST_PARTICLES:
                yield group, num_null, dropped
                group, num_rows, num_particles, num_null, dropped = [], 0, 0, 0, 0
                on_rows(done, rows)
    if group:
        yield group, num_null, dropped
    elif num_null:
        yield [_slice(read, 0, 0)], num_null, dropped
    on_rows(done, rows)


def _slice(piece: RaggedRows, first: int, end: int) -> RaggedRows:
    offsets = offsets_of(piece.counts)
    return replace(
        piece,
        counts=piece.counts[first:end],
        event_columns={name: column[first:end] for name, column in piece.event_columns.items()},
        particle_columns={
            name: column[offsets[first] : offsets[end]] for name, column in piece.particle_columns.items()
        },
        is_null=None,
    )


def _rows(piece: RaggedRows, keep: npt.NDArray[np.bool_]) -> RaggedRows:
    """Rows in ``keep``, with their particles. ``keep`` (R,) bool."""
    kept = np.repeat(keep, piece.counts)
    return replace(
        piece,
        counts=piece.counts[keep],
        event_columns={name: column[keep] for name, column in piece.event_columns.items()},
        particle_columns={name: column[kept] for name, column in piece.particle_columns.items()},
        is_null=None,
    )
