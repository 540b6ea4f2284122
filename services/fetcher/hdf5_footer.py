"""What a staged HDF5 file of flat tables holds. It has no row groups: spans of rows stand in for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.config import StreamConfig
from common.hdf5_tables import BadTables, Tables, open_tables, read_counts
from common.input_errors import one_line, raise_if_machine
from common.schema import Workload
from services.fetcher.bad_file import BadFileError
from services.fetcher.hdf5_storage import check_storage
from services.fetcher.plan import Footer, RowGroup, SlotCapacity, cut_spans

_LEAST_ROWS = 4_096
_MOST_ROWS = 65_536
_GROUPS_A_UNIT = 4


def read_hdf5_footer(path: Path, workload: Workload, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """The file's rows in spans, with the exact particles of each, fillers included. Raises BadFileError."""
    try:
        tables = open_tables(path, workload)
        try:
            check_storage(tables, path.stat().st_size)
            counts = _read_counts(tables)
        finally:
            tables.close()
    except BadTables as error:
        raise BadFileError(str(error), error.rows) from None
    except (OSError, MemoryError) as error:
        raise_if_machine(error, path)
        raise BadFileError(f"unreadable: {one_line(error)}") from None
    rows = rows_of_group(stream)
    return Footer(tuple(_row_group(counts[i : i + rows], stream, capacity) for i in range(0, len(counts), rows)))


def rows_of_group(stream: StreamConfig) -> int:
    """Rows of a span: the fewer, the better a unit mixes files, and the more often a chunk is read twice."""
    return min(max(stream.unit_events // _GROUPS_A_UNIT, _LEAST_ROWS), _MOST_ROWS)


def _read_counts(tables: Tables) -> npt.NDArray[np.int64]:
    name, rows = tables.counts.name, tables.counts.rows
    counts = read_counts(tables, 0, rows)
    # As floats, too: a damaged count may be so large that the sum of integers begins anew.
    if int(counts.sum()) != tables.particles.rows or counts.sum(dtype=np.float64) > 2.0**62:
        raise BadTables(
            f"dataset {name!r} counts {counts.sum(dtype=np.float64):.0f} particles, and {tables.particles.name!r} has "
            f"{tables.particles.rows} rows; expected as many",
            rows,
        )
    return counts


def _row_group(counts: npt.NDArray[np.int64], stream: StreamConfig, capacity: SlotCapacity) -> RowGroup:
    rows, particles = len(counts), int(counts.sum())
    return RowGroup(rows, particles, () if capacity.fits(rows, particles) else cut_spans(counts, capacity, stream))
