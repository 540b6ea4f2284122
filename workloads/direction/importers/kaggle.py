"""Import of Kaggle's "IceCube - Neutrinos in Deep Ice": files of pulses, a table of events, a table of sensors.

The files `batch_N.parquet` have a row a pulse; `train_meta.parquet` has a row an event, with the rows of its pulses in
the file of its batch. Test data (`test_meta.parquet`) have no angles, and neither have the imported files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from common.errors import BadInputError
from common.files.rows import RaggedRows
from common.schema import EventSchema
from common.unit_arrays import Array
from workloads.base.importer import ForeignFile
from workloads.direction.columns import DIRECTION, UNKNOWN, WITHOUT_TARGET
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry
from workloads.direction.importers.beside import write_geometry_beside
from workloads.direction.importers.meta import BatchEvents, MetaTable
from workloads.direction.importers.pulses import PlaceInFile, Pulses, check_pulses, rows_of_pulses
from workloads.direction.importers.tables import (
    check_columns,
    column_names,
    open_table,
    record_batches,
    values_of,
    version_of,
)

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


class KaggleImporter:
    """Importer of Kaggle's layout."""

    def recognises(self, place: Path) -> bool:
        """True for a file with the columns of a batch's, or a folder with one or with a table of events."""
        path = next(iter(_batch_files(place)), None)
        if path is None:
            return any((place / f"{name}_meta.parquet").is_file() for name in _SETS)
        return column_names(path) >= PULSE_COLUMNS.keys()

    def open(self, places: Sequence[Path]) -> KaggleFiles:
        """All batches in these places, with the tables beside them."""
        found = list(dict.fromkeys(path for place in places for path in _batch_files(place)))
        if not found:
            raise BadInputError(f"{places[0]}: no batch_N.parquet in it, nor in its folder train or test")
        for path in found:
            if not _BATCH_FILE.fullmatch(path.name):
                raise BadInputError(f"{path}: expected a file batch_N.parquet, where N is its batch_id")
        by_number: dict[int, Path] = {}
        for path in found:
            other = by_number.setdefault(_number(path), path)
            if other != path:
                raise BadInputError(f"{other} and {path} are both batch {_number(path)}; give one of them")
        metas = {_table_of_events(path) for path in found}
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


def _table_of_events(path: Path) -> Path:
    """Table that a batch's file belongs to: the test set's in a folder `test`, or if there is no other."""
    names = [f"{name}_meta.parquet" for name in _SETS]
    return _beside(path, names if path.parent.name != "test" else names[::-1])


def _beside(path: Path, names: Sequence[str]) -> Path:
    """First of these files in the folder of ``path`` or the one above. Raises BadInputError."""
    folders = (path.parent, path.absolute().parent.parent)
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    raise BadInputError(f"{path}: no {' or '.join(names)} in its folder or the one above; put it there")


KAGGLE = KaggleImporter()
