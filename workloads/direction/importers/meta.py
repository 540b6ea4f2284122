"""Kaggle's table of events, `train_meta.parquet` or `test_meta.parquet`: 132 million rows, read a batch at a time.

E events of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from workloads.direction.importers.pulses import MOST_PULSES
from workloads.direction.importers.tables import (
    Numbers,
    check_columns,
    first_bad,
    open_table,
    record_batches,
    values_of,
)

MOST_EVENTS = 1 << 23
"""Events of one batch that an import holds in memory; Kaggle's have 200,000."""

_MOST_RUNS = 1 << 16
"""Runs of rows of one batch each in the whole table; Kaggle's has 660."""

_RANGES = {"event_id": "integers", "first_pulse_index": "integers", "last_pulse_index": "integers"}
_ANGLES = {"azimuth": ("2π", 2 * np.pi), "zenith": ("π", np.pi)}
"""Upper ends of the angles, as text and in radians."""

_ROUNDING_RAD = 3e-7
"""Excess of 2π in float32 over 2π."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchEvents:
    """Events of one batch, in the order of their pulses."""

    event_id_E: Int64
    offsets_E1: Int64
    """Event e has the rows offsets[e] to offsets[e + 1] of the batch's file."""
    arrival_E2: npt.NDArray[np.float32] | None
    """[azimuth, zenith] in radians; None: not known."""


@dataclass(frozen=True)
class _Run:
    """Consecutive rows of a row group that are of one batch."""

    batch: int
    group: int
    first: int
    end: int


class MetaTable:
    """Table of events. A first pass, over the column of batches alone, finds the rows of each wanted one."""

    def __init__(self, path: Path, wanted: Collection[int]) -> None:
        """Find the rows of the wanted batches. Raises BadInputError."""
        self.path = path
        self._file = open_table(path)
        schema = self._file.schema_arrow
        self.has_target = not {"azimuth", "zenith"}.isdisjoint(schema.names)
        angles = dict.fromkeys(_ANGLES, "numbers") if self.has_target else {}
        self._columns = [*_RANGES, *angles]
        check_columns(schema, {"batch_id": "integers", **_RANGES, **angles}, str(path))
        self._runs = _runs(self._file, path, frozenset(wanted))
        self._cursor = _Cursor(self._file, path, self._columns)

    def num_events(self, batch: int) -> int:
        """Events of a wanted batch. Raises BadInputError if there are none, or too many to hold."""
        events = sum(run.end - run.first for run in self._runs.get(batch, ()))
        if not events:
            raise BadInputError(f"{self.path}: no event with batch_id {batch}; use the table that belongs to the files")
        if events > MOST_EVENTS:
            raise BadInputError(f"{self.path}, batch {batch}: {events:,} events; at most {MOST_EVENTS:,} are allowed")
        return events

    def events(self, batch: int) -> BatchEvents:
        """Events of a wanted batch, checked. Fastest in the order of the table. Raises BadInputError."""
        where = f"{self.path}, batch {batch}"
        self.num_events(batch)
        table = pa.concat_tables([self._cursor.rows(run) for run in self._runs[batch]])
        column = {name: values_of(table[name], f"{where}, column {name!r}") for name in self._columns}
        event_id_E = as_int64(column["event_id"], f"{where}, column 'event_id'")
        ids, times = np.unique(event_id_E, return_counts=True)
        if len(ids) < len(event_id_E):
            raise BadInputError(f"{where}: event {ids[times > 1][0]} occurs twice; each event may occur once")
        offsets_E1 = _offsets(event_id_E, column["first_pulse_index"], column["last_pulse_index"], where)
        arrival_E2 = None
        if self.has_target:
            arrival_E2 = np.empty((len(event_id_E), 2), np.float32)
            for i, name in enumerate(_ANGLES):
                arrival_E2[:, i] = checked_angle(column[name], name, event_id_E, where)
        return BatchEvents(event_id_E, offsets_E1, arrival_E2)


def checked_angle(
    angle_E: Numbers, name: str, event_id_E: Int64, where: str, *, least: float = 0.0
) -> npt.NDArray[np.float64]:
    """Angle between ``least`` and 2π, if it is an azimuth, or 0 and π. Raises BadInputError that names the event."""
    angle_E = angle_E.astype(np.float64)
    text, most = _ANGLES["azimuth" if name.endswith("azimuth") else "zenith"]
    bad = first_bad(~((angle_E >= least - _ROUNDING_RAD) & (angle_E <= most + _ROUNDING_RAD)))
    if bad is not None:
        expected = f"{'-π' if least else '0'} to {text} radians"
        raise BadInputError(f"{where}, event {event_id_E[bad]}: its {name} is {angle_E[bad]}; expected {expected}")
    return np.clip(angle_E, least, most)


def as_int64(values: Numbers, where: str) -> Int64:
    """Integers as int64. Raises BadInputError for one that it can't hold."""
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise BadInputError(f"{where}: {values.max()} is too large; expected numbers below 2⁶³")
    return values.astype(np.int64)


def _offsets(event_id_E: Int64, first_E: Numbers, last_E: Numbers, where: str) -> Int64:
    """First row of each event, and the number of rows. Raises BadInputError unless the ranges follow each other."""
    first_E, last_E = first_E.astype(np.int64), last_E.astype(np.int64)
    bad = first_bad((last_E < first_E) | (first_E < 0))
    if bad is not None:
        raise BadInputError(
            f"{where}, event {event_id_E[bad]}: its pulses are the rows {first_E[bad]} to {last_E[bad]}; expected a "
            "range that isn't empty"
        )
    expected_E = np.concatenate([[0], last_E[:-1] + 1])
    bad = first_bad(first_E != expected_E)
    if bad is not None:
        how = (
            "overlap those of the event before, or are not sorted" if first_E[bad] < expected_E[bad] else "leave a gap"
        )
        raise BadInputError(
            f"{where}, event {event_id_E[bad]}: its pulses begin in row {first_E[bad]} and {how}; expected row "
            f"{expected_E[bad]}: events in the order of their pulses, and a pulse of every row in one event"
        )
    bad = first_bad(last_E - first_E >= MOST_PULSES)
    if bad is not None:
        raise BadInputError(
            f"{where}, event {event_id_E[bad]}: {last_E[bad] - first_E[bad] + 1:,} pulses; at most {MOST_PULSES:,} are "
            "allowed"
        )
    return np.concatenate([first_E, last_E[-1:] + 1])


def _runs(file: pq.ParquetFile, path: Path, wanted: frozenset[int]) -> dict[int, list[_Run]]:
    """Rows of each wanted batch, in order.

    Row groups without a wanted batch, or of one only, are known from their statistics and not read.
    """
    found: dict[int, list[_Run]] = {}
    num_runs = 0
    for group in range(file.metadata.num_row_groups):
        for run in _runs_of_group(file, path, group, wanted):
            num_runs += 1
            if num_runs > _MOST_RUNS:
                raise BadInputError(
                    f"{path}: batch_id changes more than {_MOST_RUNS:,} times; sort the table by batch_id"
                )
            if run.batch in wanted:
                found.setdefault(run.batch, []).append(run)
    return found


def _runs_of_group(file: pq.ParquetFile, path: Path, group: int, wanted: frozenset[int]) -> Iterator[_Run]:
    metadata = file.metadata.row_group(group)
    places = range(metadata.num_columns)  # leaves: of a struct there are several
    statistics = next(
        (one.statistics for one in map(metadata.column, places) if one.path_in_schema == "batch_id"),
        None,
    )
    if statistics is not None and statistics.has_min_max and statistics.null_count == 0:
        low, high = statistics.min, statistics.max
        if not any(low <= batch <= high for batch in wanted):
            return
        if low == high:
            yield _Run(low, group, 0, metadata.num_rows)
            return
    row = 0
    for piece in record_batches(file, path, ["batch_id"], groups=[group]):
        batch_R = values_of(piece.column(0), f"{path}, row group {group}, column 'batch_id'", row)
        bounds = np.flatnonzero(np.diff(batch_R)) + 1
        for first, end in pairwise([0, *bounds.tolist(), len(batch_R)]):
            if end > first:
                yield _Run(int(batch_R[first]), group, row + first, row + end)
        row += len(batch_R)


class _Cursor:
    """Reader of runs of rows, which goes on where it stopped if asked for later rows of the same row group."""

    def __init__(self, file: pq.ParquetFile, path: Path, columns: list[str]) -> None:
        self._file, self._path, self._columns = file, path, columns
        self._group = self._first = -1
        self._held: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def rows(self, run: _Run) -> pa.Table:
        """Rows of the run. Raises BadInputError."""
        if run.group != self._group or run.first < self._first or self._held is None:
            self._group, self._first = run.group, 0
            self._batches = record_batches(self._file, self._path, self._columns, groups=[run.group])
            self._held = next(self._batches)
        pieces = []
        while True:
            end = self._first + self._held.num_rows
            first = max(run.first, self._first)
            if first < min(run.end, end):
                pieces.append(self._held.slice(first - self._first, min(run.end, end) - first))
            if run.end <= end:
                return pa.Table.from_batches(pieces)
            self._first, self._held = end, next(self._batches)
