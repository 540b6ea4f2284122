"""Events from the tables of others: pulses and truth joined and checked, cut if they are too large, ordered.

E events, P pulses. A row of a table of pulses is a pulse; the pulses of an event follow each other. A row of a table
of truth is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.files.rows import RaggedRows, offsets_of
from common.schema import EventSchema
from common.unit_arrays import Array
from workloads.base.interface import ForeignFile
from workloads.direction.columns import CASCADE, CLASSICAL_FITS, TRACK, UNKNOWN
from workloads.direction.foreign_tables import Numbers, Table, as_int64, first_bad, values_of
from workloads.direction.geometry import Geometry, Name, write_geometry_beside
from workloads.direction.grouping import Float32, Int64, best_pulses, order_by_sensor_and_time

MOST_EVENTS = 1 << 23
"""Events of one batch that an import holds in memory; Kaggle's have 200,000."""

ANGLES = {"azimuth": ("2π", 2 * np.pi), "zenith": ("π", np.pi)}
"""Upper ends of the angles, as text and in radians."""

_ROUNDING_RAD = 3e-7
"""Excess of 2π in float32 over 2π."""

MOST_PULSES = 1 << 22
"""Pulses of one event that an import holds in memory; the largest events of IceCube have 178,000."""

_MOST_NS = float(1 << 62)
"""Largest time: 146 years. The difference of two such integers has 64 bits."""

_MOST_PE = float(np.finfo(np.float32).max)
_EXACT_NS = float(1 << 23)
"""Largest time that float32 holds to half a nanosecond."""


@dataclass(frozen=True)
class Pulses:
    """Pulses of whole events, in the file's order."""

    counts_E: Int64
    sensor_P: Numbers
    """Integers."""
    time_P: Numbers
    """Numbers, ns."""
    charge_P: Numbers
    """Numbers, photo-electrons."""
    auxiliary_P: Numbers
    """Bool."""


@dataclass(frozen=True)
class PlaceInFile:
    """Place of pulses in a file, for errors."""

    where: str
    first_row: int
    counts_E: Int64
    event_id_E: Int64 | None = None
    """None: not known yet."""

    def of(self, pulse: int) -> str:
        """Row and event of a pulse."""
        event = int(np.searchsorted(np.cumsum(self.counts_E), pulse, "right"))
        row = f"{self.where}, row {self.first_row + pulse}"
        return row if self.event_id_E is None else f"{row}, event {self.event_id_E[event]}"


def check_pulses(pulses: Pulses, num_sensors: int, place: PlaceInFile) -> None:
    """Raise BadInputError that names the row for a sensor without position, or a time or charge that can't be."""
    if not len(pulses.sensor_P):
        return
    sensor_P = pulses.sensor_P
    if sensor_P.min() < 0 or sensor_P.max() >= num_sensors:
        row = first_bad((sensor_P < 0) | (sensor_P >= num_sensors))
        assert row is not None
        raise BadInputError(
            f"{place.of(row)}: sensor {sensor_P[row]} has no position; the geometry has the sensors 0 "
            f"to {num_sensors - 1}: use the table of this detector"
        )
    for what, values_P, least, most in (
        ("time", pulses.time_P, -_MOST_NS, _MOST_NS),
        ("charge", pulses.charge_P, 0.0, _MOST_PE),
    ):
        # Two passes without arrays of their own; false for NaN.
        if not (float(values_P.min()) >= least and float(values_P.max()) <= most):
            row = first_bad(~((values_P >= least) & (values_P <= most)))
            assert row is not None
            expected = f"a finite number, {'0' if least == 0 else f'{least:.2g}'} to {most:.2g}"
            raise BadInputError(f"{place.of(row)}: its {what} is {values_P[row]}; expected {expected}")


def rows_of_pulses(pulses: Pulses, event_columns: Mapping[str, Array], most: int) -> RaggedRows:
    """Rows of the workload's columns: pulses by sensor and time, those above ``most`` an event left out.

    ``event_columns`` are arrays (E, fields); those that imports never know are added.
    """
    time_P = _small_times(pulses)
    order_P = order_by_sensor_and_time(pulses.counts_E, pulses.sensor_P, time_P)
    counts_E = pulses.counts_E
    if len(counts_E) and counts_E.max() > most:
        kept_P = best_pulses(offsets_of(counts_E), time_P, pulses.auxiliary_P, most)
        order_P = order_P[kept_P[order_P]]
        counts_E = np.minimum(counts_E, most)
    pulses_P2 = np.empty((len(order_P), 2), np.float32)
    pulses_P2[:, 0] = time_P[order_P]
    pulses_P2[:, 1] = pulses.charge_P[order_P]
    events = len(counts_E)
    return RaggedRows(
        counts=counts_E,
        event_columns={
            "enriched": np.zeros((events, 1), np.bool_),
            "classical_fits": np.zeros((events, len(CLASSICAL_FITS)), np.float32),
            **event_columns,
        },
        particle_columns={
            "pulses": pulses_P2,
            "sensor": pulses.sensor_P[order_P].astype(np.int16, copy=False)[:, None],
            "auxiliary": pulses.auxiliary_P[order_P][:, None],
        },
        large=np.empty(0, np.int64),
        large_events=None,
        particles_dropped=len(time_P) - len(order_P),
    )


def _small_times(pulses: Pulses) -> Float32:
    """Times as float32, ns. Only differences matter: large ones are counted from the event's first pulse."""
    time_P, counts_E = pulses.time_P, pulses.counts_E
    if len(time_P) and max(-float(time_P.min()), float(time_P.max())) > _EXACT_NS:
        filled_E = counts_E > 0
        time_P = time_P if time_P.dtype.kind == "f" else time_P.astype(np.int64)  # holds the differences
        first_E = np.minimum.reduceat(time_P, offsets_of(counts_E)[:-1][filled_E])
        time_P = time_P - np.repeat(first_E, counts_E[filled_E])
    return time_P.astype(np.float32, copy=False)


def checked_angle(
    angle_E: Numbers, name: str, event_id_E: Int64, where: str, *, least: float = 0.0
) -> npt.NDArray[np.float64]:
    """Angle between ``least`` and 2π, if it is an azimuth, or 0 and π. Raises BadInputError that names the event."""
    angle_E = angle_E.astype(np.float64)
    text, most = ANGLES["azimuth" if name.endswith("azimuth") else "zenith"]
    bad = first_bad(~((angle_E >= least - _ROUNDING_RAD) & (angle_E <= most + _ROUNDING_RAD)))
    if bad is not None:
        expected = f"{'-π' if least else '0'} to {text} radians"
        raise BadInputError(f"{where}, event {event_id_E[bad]}: its {name} is {angle_E[bad]}; expected {expected}")
    return np.clip(angle_E, least, most)


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

    def kinds_among(self, columns: Collection[str]) -> dict[str, str]:
        """Return those to read, of a table with these columns, and the kinds of their types."""
        optional = [name for name in (self.energy, self.particle, self.interaction) if name in columns]
        return dict.fromkeys((self.azimuth, self.zenith), "numbers") | dict.fromkeys(optional, "numbers, if known")


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
    names: TruthNames | None, read: Mapping[str, Numbers], event_id_E: Int64, where: str
) -> dict[str, Array]:
    """Return columns of the workload. ``read``: those of TruthNames, (E,) each; None: unknown. Raises BadInputError."""
    if names is None:
        unknown_E = topology(None, None, len(event_id_E))
        return {"true_energy": np.zeros((len(event_id_E), 1), np.float32), "topology": unknown_E[:, None]}
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


def _energy(energy_E: Numbers | None, event_id_E: Int64, where: str) -> Float32:
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


@dataclass(frozen=True)
class PulseNames:
    """Names of the columns of one table's pulses."""

    sensor: tuple[str, ...]
    """Position of the sensor, or its id alone."""
    time: str
    charge: str | None
    """None: every pulse is one photo-electron."""
    quality: str | None
    """None: no pulse is auxiliary."""

    @property
    def kinds(self) -> dict[str, str]:
        """Columns to read, and the kinds of their types."""
        by_id = len(self.sensor) == 1
        kinds = dict.fromkeys(self.sensor, "integers" if by_id else "numbers") | {self.time: "numbers"}
        kinds |= {self.charge: "numbers"} if self.charge else {}
        return kinds | ({self.quality: "bool or numbers"} if self.quality else {})


@dataclass(frozen=True)
class ForeignEvents:
    """Consecutive whole events of a table."""

    place: PlaceInFile
    """Place of the pulses, for errors, and their number in each event."""
    event_columns: Mapping[str, Array]
    pulse_columns: Mapping[str, Numbers]
    """Columns of PulseNames.kinds, (P,)."""


@dataclass(frozen=True)
class FlatEvents:
    """Table of pulses, and its table of events, which is held in memory."""

    pulses: Table
    truth: Table
    names: PulseNames
    event: str
    """Column with the id of the event, of both tables."""

    def version(self) -> str:
        """See ForeignFiles."""
        return " with ".join(dict.fromkeys((self.pulses.version(), self.truth.version())))

    def positions(self) -> Iterator[tuple[Float32, Name]]:
        """See positions_in()."""
        return positions_in(self.pulses, self.names.sensor)

    def windows(self) -> Iterator[ForeignEvents]:
        """Events with pulses, in the order of the pulses. Raises BadInputError."""
        events = _EventTable(self.truth, self.event)
        where = self.pulses.where
        held: list[pa.RecordBatch] = []
        first = rows = 0
        for batch in self.pulses.batches({self.event: "integers", **self.names.kinds}):
            changes = np.flatnonzero(np.diff(_columns(batch, [self.event], where, rows)[self.event]))
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
                    f"{where}, row {first}: more than {MOST_PULSES:,} pulses of one event; that is the most allowed"
                )
        if rows > first:
            yield self._window(pa.Table.from_batches(held), first, events)

    def _window(self, table: pa.Table, first_row: int, events: _EventTable) -> ForeignEvents:
        columns = _columns(table, table.column_names, self.pulses.where, first_row)
        ids_P = as_int64(columns.pop(self.event), f"{self.pulses.where}, column {self.event!r}")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(ids_P)) + 1])
        counts_E = np.diff(np.append(starts, len(ids_P)))
        place = PlaceInFile(self.pulses.where, first_row, counts_E, ids_P[starts])
        return ForeignEvents(place, events.columns_of(ids_P[starts], place, starts), columns)


def positions_in(table: Table, columns: Sequence[str]) -> Iterator[tuple[Float32, Name]]:
    """Positions in these three columns, some at a time, and the names of their rows. Raises BadInputError."""
    first = 0
    for batch in table.batches(dict.fromkeys(columns, "numbers")):
        place = PlaceInFile(table.where, first, np.array([batch.num_rows]))
        yield stacked(columns, _columns(batch, columns, table.where, first)), place.of
        first += batch.num_rows


def stacked(names: Sequence[str], columns: Mapping[str, Numbers]) -> Float32:
    """Positions of the pulses' sensors, m. (3, P)."""
    return np.stack([columns[name].astype(np.float32) for name in names])


class _EventTable:
    """Columns of all events of a file, by id."""

    def __init__(self, truth: Table, event: str) -> None:
        """Read the table. Raises BadInputError."""
        self._where, self._event = truth.where, event
        names = truth_names(truth.columns.names)
        kinds = {event: "integers"} | (names.kinds_among(truth.columns.names) if names else {})
        batches: list[pa.RecordBatch] = []
        num_events = 0
        for batch in truth.batches(kinds):
            batches.append(batch)
            num_events += batch.num_rows
            if num_events > MOST_EVENTS:
                raise BadInputError(f"{truth.where}: more than {MOST_EVENTS:,} events; that is the most of a file")
        schema = batches[0].schema if batches else pa.schema([(name, pa.int64()) for name in kinds])
        read = _columns(pa.Table.from_batches(batches, schema), list(kinds), truth.where, 0)
        ids_E = as_int64(read[event], f"{truth.where}, column {event!r}")
        columns = truth_columns(names, read, ids_E, truth.where)
        order = np.argsort(ids_E, kind="stable")
        self._ids_E = ids_E[order]
        same = first_bad(np.diff(self._ids_E) == 0)
        if same is not None:
            raise BadInputError(f"{truth.where}: event {self._ids_E[same]} occurs twice; each event may occur once")
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
                f"{place.of(starts_E[unknown])}: it is not in {self._where}; give the table of the same events"
            )
        again_E = np.ones(len(ids_E), np.bool_)
        again_E[np.unique(ids_E, return_index=True)[1]] = False
        again = first_bad(again_E | self._seen_E[place_E])
        if again is not None:
            raise BadInputError(
                f"{place.of(starts_E[again])}: it has pulses in other rows before; sort the table by {self._event}"
            )
        self._seen_E[place_E] = True
        return {"event_id": ids_E[:, None], **{name: values[place_E] for name, values in self._columns.items()}}


def _columns(data: pa.Table | pa.RecordBatch, names: Sequence[str], where: str, first_row: int) -> dict[str, Numbers]:
    """Numbers by column. Raises BadInputError that names column and row if one is null."""
    return {name: values_of(data.column(name), f"{where}, column {name!r}", first_row) for name in names}


class OpenedFiles:
    """Files of one detector, opened: see ForeignFiles."""

    def __init__(
        self,
        sources: Mapping[ForeignFile, FlatEvents],
        geometry: Geometry,
        schema: EventSchema,
        sensor_ids: Callable[[Float32, Name], npt.NDArray[np.int16]] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """``sensor_ids``: ids by positions; None for pulses that have ids."""
        self.geometry, self.schema, self.notes = geometry, schema.with_all_stored(), notes
        self.files = list(sources)
        self._sources, self._sensor_ids = sources, sensor_ids

    def version(self, file: ForeignFile) -> str:
        """See ForeignFiles."""
        return self._sources[file].version()

    def write_beside(self, out: Path) -> None:
        """Write the table of sensors."""
        write_geometry_beside(out, self.geometry)

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of a file; those without pulses have no row."""
        source = self._sources[file]
        return (self._rows(window, source.names, most) for window in source.windows())

    def _rows(self, window: ForeignEvents, names: PulseNames, most: int) -> RaggedRows:
        """Return rows of the workload's columns. Raises BadInputError that names the row."""
        columns, place = window.pulse_columns, window.place
        sensor_P: Numbers = columns[names.sensor[0]]
        if self._sensor_ids is not None:
            sensor_P = self._sensor_ids(stacked(names.sensor, columns), place.of)
        auxiliary_P: Numbers = np.zeros(len(sensor_P), np.bool_)
        if names.quality:
            auxiliary_P = columns[names.quality] == 0 if names.quality == "hlc" else columns[names.quality] != 0
        charge_P = columns[names.charge] if names.charge else np.ones(len(sensor_P), np.float32)
        pulses = Pulses(place.counts_E, sensor_P, columns[names.time], charge_P, auxiliary_P)
        check_pulses(pulses, len(self.geometry), place)
        return rows_of_pulses(pulses, window.event_columns, most)
