"""Import of GraphNeT's and Prometheus' files: Parquet, as folders of flat tables or as files of nested structs.

Flat: folders `truth` (or `mc_truth`) and one of pulses side by side, as `ParquetWriter` writes them, also merged into
chunks; the input is the folder of pulses, or the one that holds both. Nested: files with a struct of truth and a struct
of lists. Sensors are known by their positions: those of a `sensor_geometry.csv` beside the files, else all that occur.
E events, P pulses, S sensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.rows import RaggedRows
from common.schema import EventSchema, Per
from common.text import printable
from common.unit_arrays import Array
from workloads.base.interface import ForeignFile, Importer
from workloads.direction.columns import CASCADE, DIRECTION, TRACK, UNKNOWN
from workloads.direction.foreign_pulses import (
    MOST_EVENTS,
    MOST_PULSES,
    ROWS_AT_A_TIME,
    Float32,
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
from workloads.direction.geometry import GEOMETRY_FILE, MOST_SENSORS, Geometry, read_geometry, write_geometry_beside

_BITS = 21
_FARTHEST_M = (1 << (_BITS - 1)) / 100 - 1
_NEAR_M = 0.02
"""Largest distance between two notes of one sensor's position."""


class SensorsByPosition:
    """Table from positions to ids of sensors, with a memory of the positions seen."""

    def __init__(self, geometry: Geometry) -> None:
        from scipy.spatial import KDTree  # a quarter of a second, which files of other layouts needn't wait for

        self._tree = KDTree(geometry.position_S3.astype(np.float64))
        self._keys = np.empty(0, np.int64)
        self._ids: npt.NDArray[np.int16] = np.empty(0, np.int16)

    def ids(self, position_3P: Float32, place: PlaceInFile) -> npt.NDArray[np.int16]:
        """Id of the sensor at each position, to 2 cm. (3, P) -> (P,). Raises BadInputError that names the row."""
        unknown = first_impossible(position_3P)
        while unknown is None:
            key_P = _position_keys(position_3P)
            # Arrow's hash table is five times as fast as a binary search.
            place_P = pc.index_in(pa.array(key_P), value_set=pa.array(self._keys))
            if not place_P.null_count:
                return np.asarray(self._ids[place_P.to_numpy()])
            new = np.flatnonzero(place_P.is_null().to_numpy(zero_copy_only=False))
            keys, first = np.unique(key_P[new], return_index=True)
            _, ids = self._tree.query(position_3P[:, new[first]].T, distance_upper_bound=_NEAR_M)
            missing = ids == self._tree.n
            if missing.any():
                unknown = int(new[first[missing]].min())
            self._keys = np.concatenate([self._keys, keys])
            self._ids = np.concatenate([self._ids, ids.astype(np.int16)])
        raise BadInputError(
            f"{place.of(unknown)}: no sensor is at {position_3P[:, unknown].tolist()} m; use the table of sensors of "
            "this detector"
        )


def geometry_of(files: Sequence[FlatEvents | NestedEvents]) -> Geometry:
    """Return the sensors at all positions in the files, each once, in the order of x, y and z. Raises BadInputError."""
    found_3S = np.empty((3, 0), np.float32)
    for events in files:
        for place, columns in events.positions():
            position_3P = positions_of(events.names, columns)
            bad = first_impossible(position_3P)
            if bad is not None:
                raise BadInputError(
                    f"{place.of(bad)}: its position is {position_3P[:, bad].tolist()} m; expected metres, "
                    "at most 10,000"
                )
            encoded = pa.array(_position_keys(position_3P)).dictionary_encode()
            first = np.empty(len(encoded.dictionary), np.int64)
            first[encoded.indices.to_numpy()[::-1]] = np.arange(len(encoded))[::-1]
            found_3S = np.concatenate([found_3S, position_3P[:, first]], 1)
            keys, first = np.unique(_position_keys(found_3S), return_index=True)
            found_3S = found_3S[:, first]
            if len(keys) > MOST_SENSORS:
                raise BadInputError(
                    f"{files[0].path}: its pulses and those of the other files are at more than {MOST_SENSORS:,} "
                    "positions; expected positions of sensors"
                )
    return Geometry(np.ascontiguousarray(found_3S.T))


def first_impossible(position_3P: Float32) -> int | None:
    """Place of the first pulse whose position is not finite, or farther than 10 km, or None."""
    if not position_3P.size or max(-position_3P.min(), position_3P.max()) <= _FARTHEST_M:  # false for NaN
        return None
    return first_bad(np.any(~(np.abs(position_3P) <= _FARTHEST_M), axis=0))


def _position_keys(position_3P: Float32) -> Int64:
    """Position in centimetres as one number, in the order of x, y and z."""
    key_P = np.zeros(position_3P.shape[1], np.int64)
    for place_P in position_3P:
        # By int32: processors convert four times as many floats to it at once as to int64.
        cell_P = np.rint(place_P * np.float32(100)).astype(np.int32)
        key_P <<= _BITS
        key_P |= (cell_P + (1 << (_BITS - 1))).astype(np.int64)
    return key_P


@dataclass(frozen=True)
class TruthNames:
    """Names of the columns of one simulation's truth."""

    azimuth: str
    zenith: str
    energy: str
    particle: str
    """Code of the Particle Data Group."""
    interaction: str
    """1: charged current, 2: neutral current."""
    of_travel: bool
    """True if the angles are those of the neutrino's momentum; else they point to its source."""

    def columns_among(self, columns: Collection[str]) -> list[str]:
        """Return the columns that are read from a table with these ones, which has the angles at least."""
        optional = (self.energy, self.particle, self.interaction)
        return [self.azimuth, self.zenith, *(name for name in optional if name in columns)]


TRUTHS = (
    # I3TruthExtractor: IceCube's angles point to the source.
    TruthNames("azimuth", "zenith", "energy", "pid", "interaction_type", of_travel=False),
    # Prometheus until 2022, GraphNeT's examples: LeptonInjector's zenith and azimuth point to the source.
    TruthNames(
        *("injection_azimuth", "injection_zenith", "injection_energy", "injection_type", "injection_interaction_type"),
        of_travel=False,
    ),
    # Prometheus since, PrometheusTruthExtractor: the angles of a vector "along particle momentum" (its particle.py).
    TruthNames(
        *("initial_state_azimuth", "initial_state_zenith", "initial_state_energy", "initial_state_type", "interaction"),
        of_travel=True,
    ),
)
"""Truth that is read, the first that a table has."""

_NEUTRINOS = (12, 14, 16)


def truth_names(columns: Collection[str]) -> TruthNames | None:
    """Names of the truth that a table with these columns has, or None."""
    return next((one for one in TRUTHS if {one.azimuth, one.zenith} <= set(columns)), None)


def truth_columns(
    names: TruthNames, read: Mapping[str, Numbers], event_id_E: npt.NDArray[np.int64], where: str
) -> dict[str, Array]:
    """Return columns of the workload. ``read``: those of TruthNames, (E,) each. Raises BadInputError."""
    least = -np.pi if names.of_travel else 0.0
    azimuth_E = checked_angle(read[names.azimuth], names.azimuth, event_id_E, where, least=least)
    zenith_E = checked_angle(read[names.zenith], names.zenith, event_id_E, where)
    if names.of_travel:
        azimuth_E, zenith_E = azimuth_E + np.pi, np.pi - zenith_E
    return {
        "arrival": np.stack([azimuth_E % (2 * np.pi), zenith_E], 1).astype(np.float32),
        "true_energy": _energy(read.get(names.energy), event_id_E, where)[:, None],
        "topology": topology(read.get(names.particle), read.get(names.interaction), len(event_id_E))[:, None],
    }


def _energy(energy_E: Numbers | None, event_id_E: npt.NDArray[np.int64], where: str) -> npt.NDArray[np.float32]:
    """Energy in GeV; 0 if it is not known, which tables write as a negative number or NaN. Raises BadInputError."""
    if energy_E is None:
        return np.zeros(len(event_id_E), np.float32)
    bad = first_bad(np.isfinite(energy_E) & (energy_E.astype(np.float64) > np.finfo(np.float32).max))
    if bad is not None:
        raise BadInputError(f"{where}, event {event_id_E[bad]}: its energy is {energy_E[bad]} GeV; expected less")
    return np.where(np.isfinite(energy_E) & (energy_E > 0), energy_E, 0.0).astype(np.float32)


def topology(particle_E: Numbers | None, interaction_E: Numbers | None, events: int) -> npt.NDArray[np.int8]:
    """TRACK for charged currents of flavour 14, and for its lepton 13; CASCADE for those of 12, and neutral currents.

    Charged currents of flavour 16 make either; they, and what isn't known, are UNKNOWN.
    """
    found = np.full(events, UNKNOWN, np.int8)
    if particle_E is None:
        return found
    code_E = np.abs(particle_E)
    found[code_E == 13] = TRACK
    if interaction_E is not None:
        charged_E, neutral_E = interaction_E == 1, interaction_E == 2
        found[(code_E == 14) & charged_E] = TRACK
        found[((code_E == 12) & charged_E) | (np.isin(code_E, _NEUTRINOS) & neutral_E)] = CASCADE
    return found


EVENT = "event_no"

_POSITIONS = (("dom_x", "dom_y", "dom_z"), ("sensor_pos_x", "sensor_pos_y", "sensor_pos_z"), ("x", "y", "z"))
_TIMES = ("dom_time", "t", "time")
"""Names of a pulse's position and time; the first that a table has is read."""

_QUALITIES = ("hlc", "auxiliary")
"""`hlc` is 0 for a pulse of lower quality, `auxiliary` is true."""


@dataclass(frozen=True)
class PulseNames:
    """Names of the columns of one table's pulses."""

    position: tuple[str, str, str]
    time: str
    charge: str | None
    """None: every pulse is one photo-electron."""
    quality: str | None
    """None: no pulse is auxiliary."""

    @property
    def kinds(self) -> dict[str, str]:
        """Columns to read, and the kinds of their types."""
        kinds = dict.fromkeys([*self.position, self.time], "numbers")
        kinds |= {self.charge: "numbers"} if self.charge else {}
        return kinds | ({self.quality: "bool or integers"} if self.quality else {})


@dataclass(frozen=True)
class ForeignEvents:
    """Consecutive whole events of a table."""

    place: PlaceInFile
    """Place of the pulses, for errors, and their number in each event."""
    event_columns: Mapping[str, Array]
    pulse_columns: Mapping[str, Numbers]
    """Columns of PulseNames.kinds, (P,)."""


def pulse_names(columns: Collection[str]) -> PulseNames | None:
    """Names of the pulses that a table with these columns has, or None."""
    position = next((names for names in _POSITIONS if set(names) <= set(columns)), None)
    time = next((name for name in _TIMES if name in columns), None)
    if position is None or time is None:
        return None
    quality = next((name for name in _QUALITIES if name in columns), None)
    return PulseNames(position, time, "charge" if "charge" in columns else None, quality)


def positions_of(names: PulseNames, columns: Mapping[str, Numbers]) -> npt.NDArray[np.float32]:
    """Positions of the pulses' sensors, m. (3, P)."""
    return np.stack([columns[name].astype(np.float32) for name in names.position])


class FlatEvents:
    """Table of pulses, and its table of events, which is held in memory."""

    def __init__(self, pulses: Path, truth: Path) -> None:
        """Check the columns of the pulses. Raises BadInputError."""
        self.path, self._truth = pulses, truth
        self.tables = (pulses, truth)
        """Files that the events are made from."""
        with open_table(pulses) as file:
            schema = file.schema_arrow
        names = pulse_names(schema.names)
        if names is None:
            known = "; ".join(map(", ".join, _POSITIONS))
            raise BadInputError(
                f"{pulses}: it has no position or no time of the pulses, but "
                f"{printable(', '.join(schema.names), 300)}; expected a position ({known}) and a time "
                f"({', '.join(_TIMES)})"
            )
        self.names = names
        check_columns(schema, {EVENT: "integers", **self.names.kinds}, str(pulses))
        with open_table(truth) as file:
            self.num_events: int = file.metadata.num_rows
        if self.num_events > MOST_EVENTS:
            raise BadInputError(f"{truth}: {self.num_events:,} events; at most {MOST_EVENTS:,} in a file are allowed")

    def positions(self) -> Iterator[tuple[PlaceInFile, Mapping[str, Numbers]]]:
        """Yield places and columns of the positions of all pulses, some at a time. Raises BadInputError."""
        first = 0
        for batch in record_batches(open_table(self.path), self.path, self.names.position):
            columns = _columns(batch, batch.schema.names, str(self.path), first)
            yield PlaceInFile(str(self.path), first, np.array([batch.num_rows])), columns
            first += batch.num_rows

    def windows(self) -> Iterator[ForeignEvents]:
        """Events with pulses, in the order of the pulses. Raises BadInputError."""
        events = _EventTable(self._truth)
        wanted = [EVENT, *self.names.kinds]
        held: list[pa.RecordBatch] = []
        first = rows = 0
        for batch in record_batches(open_table(self.path), self.path, wanted):
            changes = np.flatnonzero(np.diff(_columns(batch, [EVENT], str(self.path), rows)[EVENT]))
            held.append(batch)
            if changes.size:
                size = rows + int(changes[-1]) + 1 - first
                table = pa.Table.from_batches(held)
                yield self._window(table.slice(0, size), first, events)
                first += size
                held = table.slice(size).to_batches()
            rows += batch.num_rows
            if rows - first > MOST_PULSES:
                raise BadInputError(
                    f"{self.path}, row {first}: more than {MOST_PULSES:,} pulses of one event; that is the most allowed"
                )
        if held:
            yield self._window(pa.Table.from_batches(held), first, events)

    def _window(self, table: pa.Table, first_row: int, events: _EventTable) -> ForeignEvents:
        columns = _columns(table, table.column_names, str(self.path), first_row)
        ids_P = as_int64(columns.pop(EVENT), f"{self.path}, column {EVENT!r}")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(ids_P)) + 1])
        counts_E = np.diff(np.append(starts, len(ids_P)))
        place = PlaceInFile(str(self.path), first_row, counts_E, ids_P[starts])
        return ForeignEvents(place, events.columns_of(ids_P[starts], place, starts), columns)


class _EventTable:
    """Columns of all events, by id."""

    def __init__(self, path: Path) -> None:
        """Read the table. Raises BadInputError."""
        self._path = path
        file = open_table(path)
        schema = file.schema_arrow
        names = truth_names(schema.names)
        if names is None:
            known = ", or ".join(f"{one.azimuth} and {one.zenith}" for one in TRUTHS)
            raise BadInputError(f"{path}: it has no direction of the events; expected columns {known}")
        wanted = names.columns_among(schema.names)
        check_columns(schema, {EVENT: "integers", **dict.fromkeys(wanted, "numbers")}, str(path))
        batches = list(record_batches(file, path, [EVENT, *wanted]))
        table = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in (EVENT, *wanted)]))
        read = _columns(table, table.column_names, str(path), 0)
        ids_E = as_int64(read[EVENT], f"{path}, column {EVENT!r}")
        columns = truth_columns(names, read, ids_E, str(path))
        order = np.argsort(ids_E, kind="stable")
        self._ids_E = ids_E[order]
        same = first_bad(np.diff(self._ids_E) == 0)
        if same is not None:
            raise BadInputError(f"{path}: event {self._ids_E[same]} occurs twice; each event may occur once")
        self._columns: dict[str, Array] = {name: values[order] for name, values in columns.items()}
        self._seen_E = np.zeros(len(ids_E), np.bool_)

    def columns_of(self, ids_E: Int64, place: PlaceInFile, starts_E: Int64) -> dict[str, Array]:
        """Columns of these events, each of which may be asked for once. Raises BadInputError that names the row."""
        place_E = np.searchsorted(self._ids_E, ids_E)
        known_E = place_E < len(self._ids_E)
        known_E[known_E] = self._ids_E[place_E[known_E]] == ids_E[known_E]
        unknown = first_bad(~known_E)
        if unknown is not None:
            raise BadInputError(
                f"{place.of(starts_E[unknown])}: it is not in {self._path}; give the table of the same events"
            )
        again_E = np.ones(len(ids_E), np.bool_)
        again_E[np.unique(ids_E, return_index=True)[1]] = False
        again = first_bad(again_E | self._seen_E[place_E])
        if again is not None:
            raise BadInputError(
                f"{place.of(starts_E[again])}: it has pulses in other rows before; sort the table by {EVENT}"
            )
        self._seen_E[place_E] = True
        return {"event_id": ids_E[:, None], **{name: values[place_E] for name, values in self._columns.items()}}


def _columns(data: pa.Table | pa.RecordBatch, names: Sequence[str], path: str, first_row: int) -> dict[str, Numbers]:
    """Numbers by column. Raises BadInputError that names column and row if one is null."""
    return {name: values_of(data.column(name), f"{path}, column {name!r}", first_row) for name in names}


_MOST_EVENTS_AT_A_TIME = 1 << 14


class NestedEvents:
    """Table with a row an event."""

    def __init__(self, path: Path) -> None:
        """Find the two structs. Raises BadInputError."""
        self.path = path
        self.tables = (path,)
        """Files that the events are made from."""
        with open_table(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
        structs = nested_structs(schema)
        if isinstance(structs, str):
            raise BadInputError(f"{path}: {structs}; expected one of each, as mc_truth and photons")
        self._truth, self._truth_names, self._pulses, self.names = structs
        truth, pulses = schema.field(self._truth).type, schema.field(self._pulses).type
        self._truth_columns = self._truth_names.columns_among(_names(truth))
        self._has_ids = EVENT in _names(truth)
        kinds = dict.fromkeys(self._truth_columns, "numbers") | ({EVENT: "integers"} if self._has_ids else {})
        check_columns(truth, kinds, f"{path}, column {self._truth!r}")
        values = pa.schema([pa.field(field.name, field.type.value_type) for field in pulses if _is_list(field.type)])
        check_columns(values, self.names.kinds, f"{path}, column {self._pulses!r}")
        self.num_events: int = metadata.num_rows
        self._rows_at_a_time = _rows_at_a_time(metadata, f"{self._pulses}.{self.names.time}.")

    def positions(self) -> Iterator[tuple[PlaceInFile, Mapping[str, Numbers]]]:
        """Yield places and columns of the positions of all pulses, some at a time. Raises BadInputError."""
        for first, batch in self._batches([f"{self._pulses}.{name}" for name in self.names.position]):
            counts_E, columns = self._lists(batch, self.names.position, first)
            yield PlaceInFile(str(self.path), first, counts_E, row_is_event=True), columns

    def windows(self) -> Iterator[ForeignEvents]:
        """Events, in order. Raises BadInputError."""
        truth = [*self._truth_columns, EVENT] if self._has_ids else self._truth_columns
        wanted = [f"{self._truth}.{name}" for name in truth]
        wanted += [f"{self._pulses}.{name}" for name in self.names.kinds]
        seen = np.empty(0, np.int64)
        for first, batch in self._batches(wanted):
            where = f"{self.path}, column {self._truth!r}"
            fields = {name: values_of(batch[self._truth].field(name), f"{where}, {name!r}", first) for name in truth}
            if self._has_ids:
                ids_E = as_int64(fields[EVENT], f"{where}, {EVENT!r}")
            else:  # from the file's name and the row: the same at every import
                ids_E = (zlib.crc32(self.path.name.encode()) << 31) + np.arange(first, first + batch.num_rows)
            ids, times = np.unique(np.concatenate([seen, ids_E]), return_counts=True)
            if len(ids) < len(seen) + len(ids_E):
                raise BadInputError(f"{self.path}: event {ids[times > 1][0]} occurs twice; each event may occur once")
            seen = ids
            columns = truth_columns(self._truth_names, fields, ids_E, str(self.path))
            counts_E, pulses = self._lists(batch, tuple(self.names.kinds), first)
            place = PlaceInFile(str(self.path), first, counts_E, ids_E, row_is_event=True)
            yield ForeignEvents(place, {"event_id": ids_E[:, None], **columns}, pulses)

    def _batches(self, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """First row, and rows of structs without nulls."""
        first = 0
        for batch in record_batches(open_table(self.path), self.path, columns, rows=self._rows_at_a_time):
            for name in batch.schema.names:
                row = first_bad(~batch[name].is_valid().to_numpy(zero_copy_only=False))
                if row is not None:
                    raise BadInputError(f"{self.path}, row {first + row}: {name!r} is null; expected a value an event")
            yield first, batch
            first += batch.num_rows

    def _lists(
        self, batch: pa.RecordBatch, names: tuple[str, ...], first: int
    ) -> tuple[npt.NDArray[np.int64], dict[str, Numbers]]:
        """Number of pulses of each event, and the numbers of all."""
        counts_E: npt.NDArray[np.int64] | None = None
        found: dict[str, Numbers] = {}
        for name in names:
            where = f"{self.path}, column {self._pulses!r}, {name!r}"
            lists = batch[self._pulses].field(name)
            own_E = values_of(lists.value_lengths(), where, first).astype(np.int64)
            counts_E = own_E if counts_E is None else counts_E
            row = first_bad(own_E != counts_E)
            if row is not None:
                raise BadInputError(
                    f"{where}, row {first + row}: {own_E[row]} values, but {names[0]!r} has {counts_E[row]}; expected "
                    "one a pulse in each"
                )
            row = first_bad(own_E > MOST_PULSES)
            if row is not None:
                raise BadInputError(f"{where}, row {first + row}: {own_E[row]:,} pulses; at most {MOST_PULSES:,}")
            found[name] = values_of(lists.flatten(), where)
        assert counts_E is not None
        return counts_E, found


def _rows_at_a_time(metadata: pq.FileMetaData, path: str) -> int:
    """Events that have ROWS_AT_A_TIME pulses in the mean, by the numbers in the columns whose name begins so."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    values: int = sum(column.num_values for column in columns if column.path_in_schema.startswith(path))
    return max(1, min(_MOST_EVENTS_AT_A_TIME, ROWS_AT_A_TIME * int(metadata.num_rows) // max(values, 1)))


def nested_structs(schema: pa.Schema) -> tuple[str, TruthNames, str, PulseNames] | str:
    """Return the struct of truth and the one of pulses, each with its names; a text unless there is one of each."""
    structs = {field.name: field.type for field in schema if pa.types.is_struct(field.type)}
    truths = {name: names for name, kind in structs.items() if (names := truth_names(_names(kind)))}
    pulses = {
        name: lists
        for name, kind in structs.items()
        if (lists := pulse_names([field.name for field in kind if _is_list(field.type)]))
    }
    if len(truths) != 1 or len(pulses) != 1:
        return (
            f"structs with a direction: {', '.join(truths) or 'none'}; with lists of pulses: "
            f"{', '.join(pulses) or 'none'}"
        )
    return *next(iter(truths.items())), *next(iter(pulses.items()))


def _names(kind: pa.StructType) -> list[str]:
    return [field.name for field in kind]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_FLAT, _TRUTH, _NESTED = "flat", "truth", "nested"
_MERGED = "merged"
"""Folder of GraphNeT's chunks, beside those of the tables they were merged from."""


def recognises(place: Path) -> bool:
    """True for a file of a layout, or a folder with one, or with folders of tables."""
    return any(_kind(path) is not None for path in _first_files(place))


def open_files(places: Sequence[Path]) -> GraphnetFiles:
    """All files in these places. Raises BadInputError."""
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
            left -= len(window.place.counts_E)
            found = self._rows(window, events.names, most)
            yield replace(found, is_null=None if found.counts.all() else found.counts == 0)
        if left:
            yield _null_rows(left, self.schema)

    def _rows(self, window: ForeignEvents, names: PulseNames, most: int) -> RaggedRows:
        """Return rows of the workload's columns. Raises BadInputError that names the row."""
        columns, place = window.pulse_columns, window.place
        sensor_P = self._sensors.ids(positions_of(names, columns), place)
        auxiliary_P: Numbers = np.zeros(len(sensor_P), np.bool_)
        if names.quality:
            auxiliary_P = columns[names.quality] == 0 if names.quality == "hlc" else columns[names.quality] != 0
        charge_P = columns[names.charge] if names.charge else np.ones(len(sensor_P), np.float32)
        pulses = Pulses(place.counts_E, sensor_P, columns[names.time], charge_P, auxiliary_P)
        check_pulses(pulses, len(self.geometry), place)
        return rows_of_pulses(pulses, window.event_columns, most)


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
    return geometry_of(events)


def _null_rows(rows: int, schema: EventSchema) -> RaggedRows:
    """Rows of events without pulses."""

    def zeros(per: Per, size: int) -> dict[str, Array]:
        return {column.name: np.zeros((size, len(column.fields)), column.dtype) for column in schema.columns_per(per)}

    return RaggedRows(
        counts=np.zeros(rows, np.int64),
        event_columns=zeros("event", rows),
        particle_columns=zeros("particle", 0),
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
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return None
    if EVENT in schema.names:
        flat = _FLAT if pulse_names(schema.names) is not None else None
        return _TRUTH if truth_names(schema.names) is not None else flat
    return None if isinstance(nested_structs(schema), str) else _NESTED


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


GRAPHNET = Importer(recognises, open_files)
