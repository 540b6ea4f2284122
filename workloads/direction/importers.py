"""Importers of public data sets: Kaggle's "IceCube - Neutrinos in Deep Ice", and those of GraphNeT and NuBench.

Kaggle: files `batch_N.parquet` with a row a pulse; `train_meta.parquet` has a row an event: 132 million, read a batch
at a time. Test data (`test_meta.parquet`) have no angles, and neither have the imported files.

GraphNeT: a table of truth and tables of pulses, joined by `event_no`, in folders of Parquet files, as its
`ParquetWriter` writes them, or in a SQLite database, as NuBench's `merged.db`. Or files of Prometheus: a row an event,
with a struct of truth and one of lists. Sensors are known by their positions: those of a table of them, else all that
occur.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from common.errors import BadInputError
from common.slow_progress import SlowProgress
from common.text import printable
from workloads.base.interface import ForeignFile, Importer
from workloads.direction.columns import DIRECTION, WITHOUT_TARGET
from workloads.direction.foreign_events import (
    TRUTHS,
    FlatEvents,
    OpenedFiles,
    PulseNames,
    positions_in,
    truth_names,
)
from workloads.direction.foreign_tables import (
    FIRST_ID,
    LAST_ID,
    ROWS_AT_A_TIME,
    SqliteTable,
    Table,
    as_int64,
    check_columns,
    first_bad,
    is_sqlite,
    named_errors,
    open_parquet,
    parquet_pieces,
    parquet_table,
    sqlite_tables,
    values_of,
)
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, Name, SensorsByPosition, geometry_at, read_geometry
from workloads.direction.grouping import Float32, Int64


class MetaTable:
    """Kaggle's table of events. A first pass, over the column of batches alone, finds the rows of each wanted one."""

    def __init__(self, path: Path, wanted: Collection[int]) -> None:
        """Find the rows of the wanted batches. Raises BadInputError."""
        self.path, self.table = path, parquet_table(path)
        self.rows: dict[int, range] = {}
        self._first = row = 0
        self._held: pa.RecordBatch | None = None
        for piece in self.table.batches({"batch_id": "integers"}):
            batch_R = values_of(piece.column(0), f"{path}, column 'batch_id'", row)
            for first, end in pairwise([0, *(np.flatnonzero(np.diff(batch_R)) + 1).tolist(), len(batch_R)]):
                batch = int(batch_R[first])
                before = self.rows.get(batch, range(row + first, row + first))
                if before.stop != row + first:
                    raise BadInputError(f"{path}, row {row + first}: batch {batch} again; sort the table by batch_id")
                if batch in wanted:
                    self.rows[batch] = range(before.start, row + end)
            row += len(batch_R)

    def truth(self, batch: int) -> Table:
        """Return the events of a batch."""
        where = f"{self.table.where}, batch {batch}"
        return replace(self.table, where=where, read=partial(self._pieces_of, self.rows[batch]))

    def _pieces_of(self, rows: range, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Rows, read on from the last ones' if they are behind them; always the same columns."""
        if self._held is None or rows.start < self._first:
            self._pieces, self._first = parquet_pieces(self.path, list(kinds)), 0
            self._held = next(self._pieces)
        while True:
            start, end = (max(0, row - self._first) for row in (rows.start, rows.stop))
            yield self._held.slice(start, end - start)
            if end <= self._held.num_rows:
                return
            self._first += self._held.num_rows
            self._held = next(self._pieces)


KAGGLE_PULSES = PulseNames(("sensor_id",), "time", "charge", "auxiliary")
_KAGGLE_EVENT = "event_id"
_BATCH_FILE = re.compile(r"batch_(\d{1,9})\.parquet")
_SETS = ("train", "test")
_ANGLES = {"azimuth", "zenith"}


def recognises_kaggle(place: Path) -> bool:
    """True for a file with the columns of a batch's, or a folder with one or with a table of events."""
    path = next(iter(_batch_files(place)), None)
    if path is None:
        return any((place / f"{name}_meta.parquet").is_file() for name in _SETS)
    return {_KAGGLE_EVENT, *KAGGLE_PULSES.kinds} <= set(_names_in(path))


def open_kaggle(places: Sequence[Path]) -> OpenedFiles:
    """All batches in these places, with the tables beside them. Raises BadInputError."""
    found = list(dict.fromkeys(path for place in places for path in _batch_files(place)))
    if not found:
        raise BadInputError(f"{places[0]}: no batch_N.parquet in it, nor in its folder train or test")
    by_number: dict[int, Path] = {}
    for path in found:
        match = _BATCH_FILE.fullmatch(path.name)
        if not match:
            raise BadInputError(f"{path}: expected a file batch_N.parquet, where N is its batch_id")
        other = by_number.setdefault(int(match[1]), path)
        if other != path:
            raise BadInputError(f"{other} and {path} are both batch {int(match[1])}; give one of them")
    names = [f"{name}_meta.parquet" for name in _SETS]
    # The test set's table in a folder `test`, or if there is no other.
    metas = {_beside(path, names if path.parent.name != "test" else names[::-1]) for path in found}
    if len(metas) > 1:
        raise BadInputError(f"{found[0]} and {found[-1]} belong to two tables, {min(metas)} and {max(metas)}")
    geometry = read_geometry(_beside(found[0], (GEOMETRY_FILE,)))
    meta = MetaTable(metas.pop(), by_number)
    where, columns = meta.table.where, meta.table.columns
    has_target = not _ANGLES.isdisjoint(columns.names)
    check_columns(columns, {_KAGGLE_EVENT: "integers"} | dict.fromkeys(_ANGLES if has_target else (), "numbers"), where)
    sources = {}
    for number, path in sorted(by_number.items()):
        if number not in meta.rows:
            raise BadInputError(f"{where}: no event with batch_id {number}; use the table that belongs to the files")
        file = ForeignFile(path, path.stem, len(meta.rows[number]))
        sources[file] = FlatEvents(parquet_table(path), meta.truth(number), KAGGLE_PULSES, _KAGGLE_EVENT)
    notes = () if has_target else (f"{where} has no angles: the events can only be predicted",)
    schema = DIRECTION if has_target else WITHOUT_TARGET
    return OpenedFiles(sources, geometry, schema.with_all_stored(), notes=notes)


def _batch_files(place: Path) -> list[Path]:
    """A file itself; of a folder its batches, or those of its training set, or of its test set."""
    if not place.is_dir():
        return [place] if place.suffix == ".parquet" else []
    for folder in (place, *(place / name for name in _SETS)):
        found = [path for path in folder.glob("batch_*.parquet") if _BATCH_FILE.fullmatch(path.name)]
        if found:
            return sorted(found)
    return []


def _beside(path: Path, names: Sequence[str]) -> Path:
    """First of these files in the folder of ``path`` or the one above. Raises BadInputError."""
    folders = (path.parent, path.absolute().parent.parent)
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    raise BadInputError(f"{path}: no {' or '.join(names)} in its folder or the one above; put it there")


KAGGLE = Importer(recognises_kaggle, open_kaggle)

EVENT = "event_no"
_POSITIONS = (("dom_x", "dom_y", "dom_z"), ("sensor_pos_x", "sensor_pos_y", "sensor_pos_z"), ("x", "y", "z"))
_TIMES = ("dom_time", "t", "time")
_QUALITIES = ("hlc", "auxiliary")
"""Names of a pulse's position, time and quality; the first that a table has is read."""

_PULSES_OF_SPLIT = {"train": "merged_photons", "val": "merged_photons", "test": "pulses_no_noise"}
"""NuBench's table of pulses of each of its selections."""

_EVENTS_A_FILE = 1 << 16
"""Events of a database that become one file, the piece that an import which was stopped makes again."""

_MOST_SELECTED = 1 << 26
"""Events of a selection, of which an import holds the ids in memory."""

_SAFE_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)


def pulse_names(columns: Collection[str]) -> PulseNames | None:
    """Names of the pulses that a table with these columns has, or None."""
    position = next((names for names in _POSITIONS if set(names) <= set(columns)), None)
    time, quality = (next((name for name in names if name in columns), None) for names in (_TIMES, _QUALITIES))
    if position is None or time is None:
        return None
    return PulseNames(position, time, "charge" if "charge" in columns else None, quality)


class Structs(NamedTuple):
    """Columns of a Parquet file with a row an event: a struct of truth, and one of lists of pulses."""

    truth: str
    pulses: str
    names: PulseNames


def _struct_table(path: Path, structs: Structs, *, lists: bool) -> Table:
    """Return one of the structs as a table, ``lists``: that of lists, with a row for each of their values."""
    struct = structs.pulses if lists else structs.truth
    schema = open_parquet(path).schema_arrow
    id_type = {field.name: field.type for field in schema.field(structs.truth).type}.get(EVENT)
    types = {field.name: field.type for field in schema.field(struct).type if _is_list(field.type) == lists}
    if lists:
        types = {name: kind.value_type for name, kind in types.items()}
    where = f"{path}, column {struct!r}"

    def pieces(kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        names = [name for name in kinds if name != EVENT]
        wanted = [f"{struct}.{name}" for name in names] + ([f"{structs.truth}.{EVENT}"] if id_type else [])
        first = 0
        for batch in parquet_pieces(path, wanted, _rows_at_a_time(path)):
            # Ids that are not in the file follow from its name and the row: the same at every import.
            made = (zlib.crc32(path.name.encode()) << 31) + np.arange(first, first + len(batch))
            columns = {EVENT: pc.struct_field(batch[structs.truth], EVENT) if id_type else pa.array(made)}
            columns |= {name: pc.struct_field(batch[struct], name) for name in names}
            if lists:
                columns = _flattened(columns, where, first)
            rows = pa.RecordBatch.from_pydict({name: columns[name] for name in kinds})
            for start in range(0, len(rows), ROWS_AT_A_TIME):
                yield rows.slice(start, ROWS_AT_A_TIME)
            first += len(batch)

    return Table(
        where, lambda: pa.schema(({EVENT: id_type or pa.int64()} | types).items()), pieces, parquet_table(path).version
    )


def _flattened(columns: Mapping[str, pa.Array], where: str, first: int) -> dict[str, pa.Array]:
    """The event's id and the values of all pulses. Raises BadInputError unless an event's lists are as long."""
    (_, ids), *lists = columns.items()
    lengths = {name: values_of(column.value_lengths(), f"{where}, {name!r}", first) for name, column in lists}
    (name, counts_E), *others = lengths.items()
    for other, own_E in others:
        row = first_bad(own_E != counts_E)
        if row is not None:
            raise BadInputError(
                f"{where}, {other!r}, row {first + row}: {own_E[row]} values, but {name!r} has {counts_E[row]}; "
                "expected one a pulse in each"
            )
    ids_P = ids.take(pa.array(np.repeat(np.arange(len(ids)), counts_E)))
    return {EVENT: ids_P} | {name: column.flatten() for name, column in lists}


def _rows_at_a_time(path: Path) -> int:
    """Events that have ROWS_AT_A_TIME values in the longest column, in the mean."""
    metadata = open_parquet(path).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    values: int = sum(max(group.column(i).num_values for i in range(group.num_columns)) for group in groups)
    rows: int = metadata.num_rows
    return max(1, ROWS_AT_A_TIME * rows // max(values, 1))


def _structs(schema: pa.Schema) -> Structs | str:
    """Return the two structs of a file; a text unless there is one of each."""
    structs = {field.name: list(field.type) for field in schema if pa.types.is_struct(field.type)}
    truths = [name for name, fields in structs.items() if truth_names([field.name for field in fields])]
    pulses = {
        name: names
        for name, fields in structs.items()
        if (names := pulse_names([field.name for field in fields if _is_list(field.type)]))
    }
    if len(truths) != 1 or len(pulses) != 1:
        found = [printable(", ".join(names), 100) or "none" for names in (truths, pulses)]
        return f"structs with a direction: {found[0]}; with lists of pulses: {found[1]}; expected one of each"
    return Structs(truths[0], *next(iter(pulses.items())))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_DATABASE, _PULSES, _TRUTH, _SELECTION, _SENSORS, _NESTED = range(6)
"""Contents of a file."""

_MERGED = "merged"
"""Folder of GraphNeT's merged database or chunks, beside those of the tables they were merged from."""

_SELECTIONS = "selections"
"""NuBench's folder of them, beside `merged`."""


def kind_of(path: Path) -> int | None:
    """Return what a file holds, by its columns; None: nothing of GraphNeT's layouts."""
    if is_sqlite(path):
        return _DATABASE
    names = _names_in(path)
    if EVENT in names:
        if path.suffix == ".csv":
            return _SELECTION if pulse_names(names) is None else None
        if truth_names(names) is not None:
            return _TRUTH
        if pulse_names(names) is not None:
            return _PULSES
        # Beside an index at most, so that files of other kinds of data are not taken for one.
        return _SELECTION if len(names) <= 2 else None
    if path.suffix == ".csv":
        return None
    if any(set(position) <= set(names) for position in _POSITIONS[:2]):
        return _SENSORS
    is_nested = path.suffix == ".parquet" and names and not isinstance(_structs(pq.read_schema(path)), str)
    return _NESTED if is_nested else None


def _names_in(path: Path) -> list[str]:
    """Names of the columns of a Parquet or CSV file; none if it is neither."""
    try:
        if path.suffix == ".csv":
            with path.open() as file:
                return [name.strip().strip('"') for name in file.readline(1 << 16).split(",")]
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeError):
        return []


def recognises_graphnet(place: Path) -> bool:
    """True for a file of a layout, or a folder with one, or with folders of tables."""
    return any(kind_of(path) is not None for path in _first_files(place))


def open_graphnet(places: Sequence[Path]) -> OpenedFiles:
    """All files in these places. Raises BadInputError."""
    kinds = {place: None if place.is_dir() else kind_of(place) for place in places}
    chosen = [place for place, kind in kinds.items() if kind == _SELECTION]
    sensors = [place for place, kind in kinds.items() if kind == _SENSORS]
    sources: dict[ForeignFile, FlatEvents] = {}
    for place in places:
        if place not in {*chosen, *sensors}:
            sources |= _opened(place, chosen)
    if not sources:
        raise BadInputError(f"{places[0]}: no table of pulses with {EVENT} in it, and no file of nested structs")
    geometry = _geometry(sources, sensors)
    return OpenedFiles(sources, geometry, DIRECTION.with_all_stored(), SensorsByPosition(geometry).ids)


def _opened(place: Path, chosen: Sequence[Path]) -> dict[ForeignFile, FlatEvents]:
    """Events of a file or folder; of a database those of the ``chosen`` selections, or of the ones beside it."""
    paths = [place]
    if place.is_dir():
        inside = [place / _MERGED, place]
        paths = next(filter(None, (sorted(folder.glob("*.db")) for folder in inside)), [])
        paths = paths or _parquet_files(place if _kinds(place) else _folder_of_pulses(place))
    sources: dict[ForeignFile, FlatEvents] = {}
    for path in paths:
        if is_sqlite(path):
            sources |= _database(path, chosen or _selections_beside(path))
            continue
        if chosen:
            raise BadInputError(f"{chosen[0]}: it selects events of a database, and {path} is none")
        events, rows = _tables(path)
        sources[ForeignFile(path, path.stem, rows)] = events
    return sources


def _tables(path: Path) -> tuple[FlatEvents, int]:
    """Events of a Parquet file, and their number. Raises BadInputError."""
    table = parquet_table(path)
    names = table.columns.names
    if EVENT not in names:
        structs = _structs(table.columns)
        if isinstance(structs, str):
            raise BadInputError(f"{path}: {structs}")
        pulses, truth = (_struct_table(path, structs, lists=lists) for lists in (True, False))
        return FlatEvents(pulses, truth, structs.names, EVENT), open_parquet(path).metadata.num_rows
    if truth_names(names) is not None:
        raise BadInputError(f"{path}: it is a table of events; name the folder of their pulses beside it")
    pulse = pulse_names(names)
    if pulse is None:
        known = "; ".join(map(", ".join, _POSITIONS))
        raise BadInputError(
            f"{path}: it has no position or no time of the pulses, but {printable(', '.join(names), 300)}; expected "
            f"a position ({known}) and a time ({', '.join(_TIMES)})"
        )
    own = _truth_of(path)
    return FlatEvents(table, parquet_table(own), pulse, EVENT), open_parquet(own).metadata.num_rows


def _database(path: Path, selections: Sequence[Path]) -> dict[ForeignFile, FlatEvents]:
    """Events of each table of pulses of a database, each in several files. Raises BadInputError."""
    tables = sqlite_tables(path, EVENT)
    truths = [table for table in tables if truth_names(table.column_names)]
    pulses = {table.name: (table, names) for table in tables if (names := pulse_names(table.column_names))}
    if len(truths) != 1 or not pulses:
        known = ", or ".join(f"{one.azimuth} and {one.zenith}" for one in TRUTHS)
        raise BadInputError(
            f"{path}: {len(truths)} tables with a direction and {len(pulses)} with pulses, both with {EVENT}; expected "
            f"one of truth ({known}), and one or more of pulses"
        )
    sources: dict[ForeignFile, FlatEvents] = {}
    for selection in selections or (None,):
        split = selection.stem.removesuffix("_selection") if selection else None
        only = _PULSES_OF_SPLIT.get(split or "")
        parts = list(_parts(truths[0], selection))
        for name in [only] if only in pulses else pulses:
            if not _SAFE_NAME.fullmatch(name):
                raise BadInputError(
                    f"{path}: table {printable(name, 120)!r} would name files; expected letters, digits"
                )
            stem = "-".join(filter(None, (path.stem, name, split)))
            table, names = pulses[name]
            for number, (truth, rows) in enumerate(parts):
                own = replace(table, first=truth.first, last=truth.last, selected=truth.selected)
                file = ForeignFile(path, f"{stem}-{number:05}", rows)
                sources[file] = FlatEvents(own.table, truth.table, names, EVENT)
    return sources


def _parts(truth: SqliteTable, selection: Path | None) -> Iterator[tuple[SqliteTable, int]]:
    """Parts of the table of truth that become a file each, and the number of their events."""
    found: list[tuple[int, int, Int64 | None]]
    if selection is None:
        batches = truth.pieces({EVENT: "integers"}, _EVENTS_A_FILE)
        found = [(values_of(batch[EVENT], truth.table.where)[0], len(batch), None) for batch in batches]
    else:
        ids = _selected(selection)
        pieces = [ids[first : first + _EVENTS_A_FILE] for first in range(0, len(ids), _EVENTS_A_FILE)]
        found = [(piece[0], len(piece), piece) for piece in pieces]
    firsts = [FIRST_ID, *(int(first) for first, _, _ in found[1:]), LAST_ID + 1]
    for (first, end), (_, rows, selected) in zip(pairwise(firsts), found, strict=False):  # nothing found: no part
        yield replace(truth, first=first, last=end - 1, selected=selected), rows


def _selected(path: Path) -> Int64:
    """Ids of a selection, sorted, each once. Raises BadInputError."""
    pieces: list[Int64] = []
    with named_errors(path, "a selection"):
        if path.suffix == ".csv":
            types = csv.ConvertOptions(include_columns=[EVENT], column_types={EVENT: pa.int64()})
            batches: Iterable[pa.RecordBatch] = csv.open_csv(path, convert_options=types)
        else:
            batches = parquet_table(path).batches({EVENT: "integers"})
        for batch in batches:
            where = f"{path}, column {EVENT!r}"
            pieces.append(as_int64(values_of(batch[EVENT], where), where))
            if sum(map(len, pieces)) > _MOST_SELECTED:
                raise BadInputError(f"{path}: more than {_MOST_SELECTED:,} events; cut it into several")
    return np.unique(np.concatenate([np.empty(0, np.int64), *pieces]))


def _selections_beside(path: Path) -> list[Path]:
    """Selections in NuBench's folder of them, beside the database or its folder."""
    folder = path.absolute().parent
    found = [one for parent in (folder, folder.parent) for one in sorted((parent / _SELECTIONS).glob("*"))]
    return [one for one in found if EVENT in _names_in(one)]


def _folder_of_pulses(place: Path) -> Path:
    """The only folder of pulses in a folder, or in its `merged`. Raises BadInputError."""
    for parent in (place / _MERGED, place):
        folders = [folder for folder in _folders(parent) if _PULSES in _kinds(folder)]
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


def geometry_of_table(path: Path) -> Geometry:
    """Sensors of a table of them, one of ours or GraphNeT's. Raises BadInputError."""
    return _geometry({}, [path]) if kind_of(path) == _SENSORS else read_geometry(path)


def _geometry(sources: Mapping[ForeignFile, FlatEvents], tables: Sequence[Path]) -> Geometry:
    """Sensors of these tables; else of the one beside the first file, or up to two folders above; else all."""
    if tables:
        columns = [next(names for names in _POSITIONS if set(names) <= set(_names_in(path))) for path in tables]
        pairs = zip(map(parquet_table, tables), columns, strict=True)
        return geometry_at(chain.from_iterable(positions_in(*pair) for pair in pairs), str(tables[0]))
    first = next(iter(sources)).path
    for parent in [*first.absolute().parents][:3]:
        if (parent / GEOMETRY_FILE).is_file():
            return read_geometry(parent / GEOMETRY_FILE)
    return geometry_at(_all_positions(sources), str(first))


def _all_positions(sources: Mapping[ForeignFile, FlatEvents]) -> Iterator[tuple[Float32, Name]]:
    with SlowProgress("looking for the sensors: files", len(sources)) as progress:
        for source in sources.values():
            yield from positions_in(source.pulses, source.names.sensor)
            progress.advance(1)


def _first_files(place: Path) -> Iterator[Path]:
    """First file of each folder that may hold tables, or the file itself."""
    if not place.is_dir():
        yield place
        return
    for folder in (place, *_folders(place), *_folders(place / _MERGED)):
        yield from sorted(folder.glob("*.db"))[:1] + _parquet_files(folder)[:1]


def _kinds(folder: Path) -> set[int]:
    """Kind of the first file in a folder."""
    return {kind for path in _parquet_files(folder)[:1] if (kind := kind_of(path)) is not None}


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


GRAPHNET = Importer(recognises_graphnet, open_graphnet)
