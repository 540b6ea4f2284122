"""Content of a staged HDF5 file of flat tables. Spans of rows replace row groups, which HDF5 doesn't have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.config import StreamConfig
from common.files.bad_file import BadFileError, check_largest
from common.files.hdf5.storage import check_storage
from common.files.hdf5.tables import BadTables, Tables, open_tables, read_counts
from common.files.parquet.footer_claims import MOST_ROW_GROUPS
from common.input_errors import one_line, raise_if_machine
from common.plan import Footer, RowGroup, SlotCapacity, cut_spans
from common.schema import EventSchema

_LEAST_ROWS = 4_096
_MOST_ROWS = 65_536
_GROUPS_A_UNIT = 4


def read_hdf5_footer(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """Spans of the file's rows, with the exact particles of each, fillers included. Raises BadFileError."""
    try:
        tables = open_tables(path, workload)
        try:
            check_storage(tables, path.stat().st_size)
            return Footer(tuple(_row_groups(tables, stream, capacity)))
        finally:
            tables.close()
    except BadTables as error:
        raise BadFileError(str(error), error.rows) from None
    except (OSError, MemoryError) as error:
        raise_if_machine(error, path)
        raise BadFileError(f"unreadable: {one_line(error)}") from None


def rows_of_group(stream: StreamConfig) -> int:
    """Number of rows in a span: the fewer, the better a unit mixes files, and the more often a chunk is read twice."""
    return min(max(stream.unit_events // _GROUPS_A_UNIT, _LEAST_ROWS), _MOST_ROWS)


def _row_groups(tables: Tables, stream: StreamConfig, capacity: SlotCapacity) -> Iterator[RowGroup]:
    """Spans, read one at a time: a compressed dataset of counts may be far larger than its file."""
    name, all_rows = tables.counts.name, tables.counts.rows
    rows = rows_of_group(stream)
    if all_rows > rows * MOST_ROW_GROUPS:
        raise BadTables(f"dataset {name!r} has {all_rows} rows; at most {rows * MOST_ROW_GROUPS} are read", all_rows)
    particles = 0
    for first in range(0, all_rows, rows):
        counts = read_counts(tables, first, min(rows, all_rows - first))
        # As floats, too: a damaged count may be so large that the sum of integers overflows.
        in_span = int(counts.sum(dtype=np.float64))
        particles += in_span
        if particles > tables.particles.rows:
            continue  # the file can't be used: only the total is needed, for the message
        check_largest(counts, capacity.largest_event, f"rows {first} to {first + len(counts) - 1}")
        fits = capacity.fits(len(counts), in_span)
        yield RowGroup(len(counts), in_span, () if fits else cut_spans(counts, capacity, stream))
    if particles != tables.particles.rows:
        raise BadTables(
            f"dataset {name!r} counts {particles} particles, and {tables.particles.name!r} has "
            f"{tables.particles.rows} rows; expected as many",
            all_rows,
        )
