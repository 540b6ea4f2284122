"""Parquet row groups to ragged rows: lists are read through their offsets and values, never row by row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.messages import Part
from common.ragged import Array
from common.schema import SourceColumn, ValueRule, Workload
from services.decoder.rows import BadRowsError, RaggedRows

_OPEN_FILES = 16
_BATCH_ROWS = 32_768

Beat = Callable[[], None]


class ParquetReader:
    """Reads parts; keeps the newest files open, since a block's files are read by many units.

    Raises OSError with an errno for what is wrong with the machine, and BadRowsError for what is wrong with the file.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._names = [column.name for column in workload.source_columns]
        self._files: OrderedDict[str, pq.ParquetFile] = OrderedDict()

    def read(self, part: Part, beat: Beat = lambda: None) -> RaggedRows:
        """The rows of a part. Raises BadRowsError; calls ``beat`` after every record batch."""
        where = f"{part.name}: row group {part.row_group}"
        if not part.path:
            raise BadRowsError(f"{where}: the file was there when the plan was made, and can't be staged any more")
        try:
            batches = [batch for batch in self._batches(part, beat) if batch.num_rows]
            table = pa.Table.from_batches(batches).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            self._close(part.path)
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise  # it says something of this machine and nothing of the file: decoding must not depend on it
            raise BadRowsError(f"{where} can't be read: {' '.join(str(error).split())[:300]}") from None
        if table.num_rows != part.rows:
            raise BadRowsError(f"{where} has {table.num_rows} of the {part.rows} rows that its footer promised")
        return _to_rows(table, self._workload, where, part.first_row)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._files):
            self._close(path)

    def _batches(self, part: Part, beat: Beat) -> Iterator[pa.RecordBatch]:
        """Record batches of the row group, cut to the part's rows."""
        file = self._open(part.path)
        row = 0
        for batch in file.iter_batches(_BATCH_ROWS, [part.row_group], self._names, use_threads=False):
            start, stop = max(part.first_row - row, 0), min(part.first_row + part.rows - row, batch.num_rows)
            if start < stop:
                yield batch.slice(start, stop - start)
            row += batch.num_rows
            beat()
            if row >= part.first_row + part.rows:
                return

    def _open(self, path: str) -> pq.ParquetFile:
        for evicted in [known for known in self._files if not Path(known).exists()]:
            self._close(evicted)  # an open file would keep its disk space
        file = self._files.pop(path, None) or pq.ParquetFile(path, memory_map=True)
        self._files[path] = file
        while len(self._files) > _OPEN_FILES:
            self._close(next(iter(self._files)))
        return file

    def _close(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()


def _to_rows(table: pa.Table, workload: Workload, where: str, first_row: int) -> RaggedRows:
    counts: npt.NDArray[np.int64] | None = None
    arrays: dict[str, Array] = {}
    for source in workload.source_columns:
        target = workload.column(source.into)
        column = table.column(source.name)
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if source.nesting == 0:
            _check_nulls(array, source, where, first_row)
            filled = arrays.setdefault(target.name, np.empty((table.num_rows, len(target.fields)), target.dtype))
            filled[:, source.field] = array.to_numpy(zero_copy_only=False)
            continue
        if source.nesting == 2:
            _check_nulls(array, source, where, first_row)
            counts = np.diff(array.offsets.to_numpy()).astype(np.int64)
            array = array.flatten()
        arrays[target.name] = _matrix(array, len(target.fields), target.dtype, source, where, first_row, counts)
    assert counts is not None, "a workload has one column of particles"
    rows = RaggedRows(
        counts=counts,
        event_columns={column.name: arrays[column.name] for column in workload.columns_per("event")},
        particle_columns={column.name: arrays[column.name] for column in workload.columns_per("particle")},
    )
    for rule in workload.rules:
        rows = _apply_rule(rows, rule, workload, where, first_row)
    return rows


def _matrix(
    lists: pa.Array,
    width: int,
    dtype: str,
    source: SourceColumn,
    where: str,
    first_row: int,
    counts: npt.NDArray[np.int64] | None,
) -> Array:
    """(lists, width) of lists that must all have ``width`` numbers."""
    _check_nulls(lists, source, where, first_row, counts)
    lengths = np.diff(lists.offsets.to_numpy())
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        row = first_row + _row_of(int(wrong[0]), counts)
        raise BadRowsError(
            f"{where}, column {source.name!r}, row {row}: a list has {lengths[wrong[0]]} numbers; expected {width}"
        )
    values = lists.flatten()
    if values.null_count:
        index = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
        row = first_row + _row_of(index, counts)
        raise BadRowsError(f"{where}, column {source.name!r}, row {row}: a number is null; expected none")
    with np.errstate(over="ignore"):  # what is too large for the column becomes infinite, which the rules refuse
        matrix: Array = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(-1, width)
    return matrix


def _check_nulls(
    array: pa.Array,
    source: SourceColumn,
    where: str,
    first_row: int,
    counts: npt.NDArray[np.int64] | None = None,
) -> None:
    if array.null_count:
        row = first_row + _row_of(int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))), counts)
        raise BadRowsError(f"{where}, column {source.name!r}, row {row}: the value is null; expected none")


def _row_of(index: int, counts: npt.NDArray[np.int64] | None) -> int:
    """The row that a list belongs to: itself, or the event that owns the particle."""
    return index if counts is None else int(np.searchsorted(np.cumsum(counts), index, side="right"))


def _apply_rule(rows: RaggedRows, rule: ValueRule, workload: Workload, where: str, first_row: int) -> RaggedRows:
    """Raise BadRowsError for a value that may not be; drop fillers."""
    column = workload.column(rule.column)
    per_event = column.per == "event"
    values: npt.NDArray[np.float32]
    values = (rows.event_columns if per_event else rows.particle_columns)[rule.column][:, rule.field]  # type: ignore[assignment]
    bad = ~np.isfinite(values) | (values < rule.minimum)
    if bad.any():
        index = int(np.argmax(bad))
        row = first_row + _row_of(index, None if per_event else rows.counts)
        least = f" of at least {rule.minimum:g}" if np.isfinite(rule.minimum) else ""
        raise BadRowsError(
            f"{where}, column {rule.column!r}, row {row}: {column.fields[rule.field]} is {values[index]:g}; "
            f"expected a finite number{least}"
        )
    if not rule.zero_is_filler or (keep := values != 0).all():
        return rows
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    offsets = np.concatenate([[0], np.cumsum(rows.counts)])
    return RaggedRows(
        counts=np.diff(kept_before[offsets]),
        event_columns=rows.event_columns,
        particle_columns={name: array[keep] for name, array in rows.particle_columns.items()},
        particles_dropped=rows.particles_dropped + int(len(keep) - kept_before[-1]),
    )
