"""Import of Kaggle's "IceCube - Neutrinos in Deep Ice": files of pulses, a table of events, a table of sensors.

The files `batch_N.parquet` have a row a pulse; `train_meta.parquet` has a row an event, with the rows of its pulses in
the file of its batch: 132 million, read a batch at a time. Test data (`test_meta.parquet`) have no angles, and neither
have the imported files. E events of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.rows import RaggedRows
from common.schema import EventSchema
from common.unit_arrays import Array
from workloads.base.interface import ForeignFile, Importer
from workloads.direction.columns import DIRECTION, UNKNOWN, WITHOUT_TARGET
from workloads.direction.foreign_pulses import (
    ANGLES,
    MOST_EVENTS,
    MOST_PULSES,
    Int64,
    Numbers,
    PlaceInFile,
    Pulses,
    as_int64,
    check_columns,
    check_pulses,
    checked_angle,
    column_names,
    first_bad,
    open_table,
    record_batches,
    rows_of_pulses,
    values_of,
    version_of,
)
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry, write_geometry_beside

_MOST_RUNS = 1 << 16
"""Runs of rows of one batch each in the whole table; Kaggle's has 660."""

_RANGES = {"event_id": "integers", "first_pulse_index": "integers", "last_pulse_index": "integers"}


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
        angles = dict.fromkeys(ANGLES, "numbers") if self.has_target else {}
        self._columns = [*_RANGES, *angles]
        check_columns(schema, {"batch_id": "integers", **_RANGES, **angles}, str(path))
        self._runs = _runs(self._file, path, frozenset(wanted))
        self._group = self._first = -1
        self._held: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

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
        table = pa.concat_tables([self._rows(run) for run in self._runs[batch]])
        column = {name: values_of(table[name], f"{where}, column {name!r}") for name in self._columns}
        event_id_E = as_int64(column["event_id"], f"{where}, column 'event_id'")
        ids, times = np.unique(event_id_E, return_counts=True)
        if len(ids) < len(event_id_E):
            raise BadInputError(f"{where}: event {ids[times > 1][0]} occurs twice; each event may occur once")
        offsets_E1 = _offsets(event_id_E, column["first_pulse_index"], column["last_pulse_index"], where)
        arrival_E2 = None
        if self.has_target:
            arrival_E2 = np.empty((len(event_id_E), 2), np.float32)
            for i, name in enumerate(ANGLES):
                arrival_E2[:, i] = checked_angle(column[name], name, event_id_E, where)
        return BatchEvents(event_id_E, offsets_E1, arrival_E2)

    def _rows(self, run: _Run) -> pa.Table:
        """Rows of the run, read on from the last one's if they are behind it in its row group. Raises BadInputError."""
        if run.group != self._group or run.first < self._first or self._held is None:
            self._group, self._first = run.group, 0
            self._batches = record_batches(self._file, self.path, self._columns, groups=[run.group])
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


PULSE_COLUMNS = {
    "event_id": "integers",
    "sensor_id": "integers",
    "time": "numbers",
    "charge": "numbers",
    "auxiliary": "bool",
}
"""Columns of a batch's file, and the kinds of their types."""

_BATCH_FILE = re.compile(r"batch_(\d{1,9})\.parquet")
_SETS = ("train", "test")


def recognises(place: Path) -> bool:
    """True for a file with the columns of a batch's, or a folder with one or with a table of events."""
    path = next(iter(_batch_files(place)), None)
    if path is None:
        return any((place / f"{name}_meta.parquet").is_file() for name in _SETS)
    return column_names(path) >= PULSE_COLUMNS.keys()


def open_files(places: Sequence[Path]) -> KaggleFiles:
    """All batches in these places, with the tables beside them. Raises BadInputError."""
    found = list(dict.fromkeys(path for place in places for path in _batch_files(place)))
    if not found:
        raise BadInputError(f"{places[0]}: no batch_N.parquet in it, nor in its folder train or test")
    by_number: dict[int, Path] = {}
    for path in found:
        if not _BATCH_FILE.fullmatch(path.name):
            raise BadInputError(f"{path}: expected a file batch_N.parquet, where N is its batch_id")
        other = by_number.setdefault(_number(path), path)
        if other != path:
            raise BadInputError(f"{other} and {path} are both batch {_number(path)}; give one of them")
    names = [f"{name}_meta.parquet" for name in _SETS]
    # The test set's table in a folder `test`, or if there is no other.
    metas = {_beside(path, names if path.parent.name != "test" else names[::-1]) for path in found}
    if len(metas) > 1:
        raise BadInputError(f"{found[0]} and {found[-1]} belong to two tables, {min(metas)} and {max(metas)}")
    return KaggleFiles(found, metas.pop())


class KaggleFiles:
    """Batches of one table of events."""

    def __init__(self, paths: Sequence[Path], meta: Path) -> None:
        """Read the tables of sensors and events. Raises BadInputError."""
        self.geometry = read_geometry(_beside(paths[0], (GEOMETRY_FILE,)))
        self._meta = MetaTable(meta, set(map(_number, paths)))
        target = DIRECTION if self._meta.has_target else WITHOUT_TARGET
        self.schema: EventSchema = target.with_all_stored()
        self.files = [
            ForeignFile(path, path.stem, self._meta.num_events(_number(path))) for path in sorted(paths, key=_number)
        ]
        self.notes = () if self._meta.has_target else (f"{meta} has no angles: the events can only be predicted",)

    def version(self, file: ForeignFile) -> str:
        """Content of the batch, and of the table of events."""
        return version_of(file.path, self._meta.path)

    def write_beside(self, out: Path) -> None:
        """Write the table of sensors."""
        write_geometry_beside(out, self.geometry)

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of a batch."""
        events = self._meta.events(_number(file.path))
        done = 0
        for window in _windows(file.path, events):
            last = done + len(window.counts_E)
            ids_E = events.event_id_E[done:last]
            place = PlaceInFile(str(file.path), int(events.offsets_E1[done]), window.counts_E, ids_E)
            check_pulses(window, len(self.geometry), place)
            columns: dict[str, Array] = {
                "event_id": ids_E[:, None],
                "true_energy": np.zeros((last - done, 1), np.float32),
                "topology": np.full((last - done, 1), UNKNOWN, np.int8),
            }
            if events.arrival_E2 is not None:
                columns["arrival"] = events.arrival_E2[done:last]
            yield rows_of_pulses(window, columns, most)
            done = last


def _windows(path: Path, events: BatchEvents) -> Iterator[Pulses]:
    """Pulses of consecutive whole events. Raises BadInputError if the file hasn't the rows that the events name."""
    file = open_table(path)
    check_columns(file.schema_arrow, PULSE_COLUMNS, str(path))
    offsets = events.offsets_E1
    rows = file.metadata.num_rows
    if rows != offsets[-1]:
        event = min(int(np.searchsorted(offsets, rows, "right")) - 1, len(events.event_id_E) - 1)
        what = f"event {events.event_id_E[event]} goes beyond it" if rows < offsets[-1] else "the rest is of no event"
        raise BadInputError(
            f"{path}: {rows:,} rows, but its events have {offsets[-1]:,} pulses, {what}; get both files again"
        )
    held: list[pa.RecordBatch] = []
    first = row = done = 0
    for batch in record_batches(file, path, list(PULSE_COLUMNS)):
        held.append(batch)
        row += batch.num_rows
        complete = int(np.searchsorted(offsets, row, "right")) - 1
        if complete > done:
            table = pa.Table.from_batches(held)
            size = int(offsets[complete]) - first
            yield _window(path, table.slice(0, size), events, done, complete)
            held = table.slice(size).to_batches()
            first, done = first + size, complete


def _window(path: Path, table: pa.Table, events: BatchEvents, done: int, complete: int) -> Pulses:
    """Pulses of the events ``done`` to ``complete``, which have the ids that their table has."""
    first = int(events.offsets_E1[done])
    column = {name: values_of(table[name], f"{path}, column {name!r}", first) for name in PULSE_COLUMNS}
    counts_E = np.diff(events.offsets_E1[done : complete + 1])
    ids_P = np.repeat(events.event_id_E[done:complete], counts_E)
    if not np.array_equal(ids_P, column["event_id"]):
        row = int(np.argmax(ids_P != column["event_id"]))
        raise BadInputError(
            f"{path}, row {first + row}: event_id is {column['event_id'][row]}; expected {ids_P[row]}, whose pulses "
            "are there by the table of events: get both files again"
        )
    return Pulses(counts_E, column["sensor_id"], column["time"], column["charge"], column["auxiliary"])


def _number(path: Path) -> int:
    match = _BATCH_FILE.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _batch_files(place: Path) -> list[Path]:
    """A file itself; of a folder its batches, or those of its training set, or of its test set."""
    if not place.is_dir():
        return [place] if place.suffix == ".parquet" else []
    for folder in (place, *(place / name for name in _SETS)):
        found = [path for path in folder.glob("batch_*.parquet") if _BATCH_FILE.fullmatch(path.name)]
        if found:
            return sorted(found, key=_number)
    return []


def _beside(path: Path, names: Sequence[str]) -> Path:
    """First of these files in the folder of ``path`` or the one above. Raises BadInputError."""
    folders = (path.parent, path.absolute().parent.parent)
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    raise BadInputError(f"{path}: no {' or '.join(names)} in its folder or the one above; put it there")


KAGGLE = Importer(recognises, open_files)
