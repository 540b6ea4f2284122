"""Import of GraphNeT's and Prometheus' files: Parquet, as folders of flat tables or as files of nested structs.

Flat: folders `truth` (or `mc_truth`) and one of pulses side by side, as `ParquetWriter` writes them, also merged into
chunks; the input is the folder of pulses, or the one that holds both. Nested: files with a struct of truth and a struct
of lists. Sensors are known by their positions: those of a `sensor_geometry.csv` beside the files, else all that occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.parquet.arrow_file import schema_without_views
from common.files.rows import RaggedRows
from common.schema import EventSchema
from workloads.base.importer import ForeignFile
from workloads.direction.columns import DIRECTION
from workloads.direction.geometry import GEOMETRY_FILE, MOST_SENSORS, Geometry, read_geometry
from workloads.direction.importers.beside import write_geometry_beside
from workloads.direction.importers.graphnet_flat import FlatEvents
from workloads.direction.importers.graphnet_nested import NestedEvents, nested_structs
from workloads.direction.importers.graphnet_pulses import EVENT, pulse_names, rows_of_events
from workloads.direction.importers.sensors import SensorsByPosition, TooManySensors, geometry_of
from workloads.direction.importers.tables import column_names, version_of
from workloads.direction.importers.truth import truth_names

_FLAT, _TRUTH, _NESTED = "flat", "truth", "nested"
_MERGED = "merged"
"""Folder of GraphNeT's chunks, beside those of the tables they were merged from."""


class GraphnetImporter:
    """Importer of GraphNeT's layouts."""

    def recognises(self, place: Path) -> bool:
        """True for a file of a layout, or a folder with one, or with folders of tables."""
        return any(_kind(path) is not None for path in _first_files(place))

    def open(self, places: Sequence[Path]) -> GraphnetFiles:
        """All files in these places."""
        found = [events for place in places for events in _opened(place)]
        if not found:
            raise BadInputError(f"{places[0]}: no table of pulses with {EVENT} in it, and no file of nested structs")
        return GraphnetFiles(found)


class GraphnetFiles:
    """Files of one detector."""

    def __init__(self, events: Sequence[FlatEvents | NestedEvents]) -> None:
        """Find the sensors: reads the positions of all pulses if there is no table. Raises BadInputError."""
        self._events = {one.path: one for one in events}
        self.geometry = _geometry(list(self._events.values()))
        self._sensors = SensorsByPosition(self.geometry)
        self.schema: EventSchema = DIRECTION.with_all_stored()
        self.files = [ForeignFile(path, path.stem, one.num_events) for path, one in self._events.items()]
        self.notes: tuple[str, ...] = ()

    def version(self, file: ForeignFile) -> str:
        """Content of the file, and of the table of its events."""
        return version_of(*self._events[file.path].tables)

    def write_beside(self, out: Path) -> None:
        """Write the table of sensors."""
        write_geometry_beside(out, self.geometry)

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of a file; those without pulses have no row."""
        events, left = self._events[file.path], file.rows
        for window in events.windows():
            left -= len(window.counts_E)
            found = rows_of_events(window, events.names, self._sensors, len(self.geometry), str(file.path), most)
            yield replace(found, is_null=None if found.counts.all() else found.counts == 0)
        if left:
            yield _null_rows(left, self.schema)


def _opened(place: Path) -> Iterator[FlatEvents | NestedEvents]:
    """Tables of a file or folder."""
    if place.is_dir() and not _kinds(place):
        yield from _opened(_folder_of_pulses(place))
        return
    for path in _parquet_files(place) if place.is_dir() else [place]:
        if _kind(path) == _TRUTH:
            raise BadInputError(f"{path}: it is a table of events; name the folder of their pulses beside it")
        yield FlatEvents(path, _truth_of(path)) if EVENT in column_names(path) else NestedEvents(path)


def _folder_of_pulses(place: Path) -> Path:
    """The only folder of pulses in a folder, or in its `merged`. Raises BadInputError."""
    for parent in (place / _MERGED, place):
        folders = [folder for folder in _folders(parent) if _FLAT in _kinds(folder)]
        if len(folders) > 1:
            names = ", ".join(folder.name for folder in folders)
            raise BadInputError(f"{parent}: it has pulses in {names}; name one of these folders, such as {folders[0]}")
        if folders:
            return folders[0]
    raise BadInputError(f"{place}: no folder in it has a table of pulses with {EVENT}, positions and times")


def _truth_of(path: Path) -> Path:
    """Table of the events of a table of pulses. Raises BadInputError."""
    folder = path.absolute().parent
    truths = [one for one in _folders(folder.parent) if _TRUTH in _kinds(one)]
    part = path.stem.removeprefix(f"{folder.name}_").removesuffix(f"_{folder.name}")
    names = [one / f"{name}.parquet" for one in truths for name in (f"{one.name}_{part}", f"{part}_{one.name}")]
    found = [name for name in names if name.is_file()]
    if len(found) != 1:
        expected = " or ".join(map(str, found or names)) or f"{folder.parent / 'truth' / ('truth_' + part)}.parquet"
        what = "more than one table of its events" if found else "no table of its events"
        raise BadInputError(f"{path}: there is {what}; expected one, {expected}")
    return found[0]


def _geometry(events: Sequence[FlatEvents | NestedEvents]) -> Geometry:
    """Sensors of the table beside the first file, or one or two folders above; else all that occur in the files."""
    folder = events[0].path.absolute().parent
    for parent in (folder, folder.parent, folder.parent.parent):
        if (parent / GEOMETRY_FILE).is_file():
            return read_geometry(parent / GEOMETRY_FILE)
    try:
        return geometry_of(position_3P for one in events for position_3P in one.positions())
    except TooManySensors:
        raise BadInputError(
            f"{events[0].path}: its pulses and those of the other files are at more than {MOST_SENSORS:,} positions; "
            "expected positions of sensors"
        ) from None


def _null_rows(rows: int, schema: EventSchema) -> RaggedRows:
    """Rows of events without pulses."""
    empty = {column.name: (column.dtype, len(column.fields)) for column in schema.columns}
    per_event = {column.name for column in schema.columns_per("event")}
    return RaggedRows(
        counts=np.zeros(rows, np.int64),
        event_columns={
            name: np.zeros((rows, width), dtype) for name, (dtype, width) in empty.items() if name in per_event
        },
        particle_columns={
            name: np.zeros((0, width), dtype) for name, (dtype, width) in empty.items() if name not in per_event
        },
        large=np.empty(0, np.int64),
        large_events=None,
        is_null=np.ones(rows, np.bool_),
    )


def _first_files(place: Path) -> Iterator[Path]:
    """First Parquet file of each folder that may hold tables, or the file itself."""
    if not place.is_dir():
        yield place
        return
    for folder in (place, *_folders(place), *_folders(place / _MERGED)):
        yield from _parquet_files(folder)[:1]


def _kinds(folder: Path) -> set[str]:
    """Kind of the first file in a folder."""
    return {kind for path in _parquet_files(folder)[:1] if (kind := _kind(path)) is not None}


def _kind(path: Path) -> str | None:
    """Return what a file holds, by its columns; None: nothing of these layouts."""
    try:
        schema = schema_without_views(pq.read_schema(path))
    except (pa.ArrowException, OSError):
        return None
    if EVENT in schema.names:
        flat = _FLAT if pulse_names(schema.names) is not None else None
        return _TRUTH if truth_names(schema.names) is not None else flat
    try:
        nested_structs(schema, "")
    except BadInputError:
        return None
    return _NESTED


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


GRAPHNET = GraphnetImporter()
