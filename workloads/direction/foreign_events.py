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

SensorIds = Callable[[Float32, Name], npt.NDArray[np.int16]]

MOST_EVENTS = 1 << 23
"""Events of one batch that an import holds in memory; Kaggle's have 200,000."""

_ROUNDING_RAD = 3e-7
"""Excess of 2π in float32 over 2π."""

MOST_PULSES = 1 << 22
"""Pulses of one event that an import holds in memory; the largest events of IceCube have 178,000."""

_RANGE = ("first_pulse_index", "last_pulse_index")
"""Columns of truth with the first and last row of an event's pulses, from which their number follows."""

_MOST_NS = float(1 << 62)
"""Largest time: 146 years. The difference of two such integers has 64 bits."""

_MOST_FLOAT = float(np.finfo(np.float32).max)
_EXACT_NS = float(1 << 23)
"""Largest time that float32 holds to half a nanosecond."""


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


def check_range(values: Numbers, least: float, most: float, name: Name, what: str, expected: str) -> None:
    """Raise BadInputError for the first value that is not in the range, as NaN is not. ``name``: of its place."""
    # Two passes without arrays of their own; false for NaN.
    if len(values) and not (float(values.min()) >= least and float(values.max()) <= most):
        bad = int(np.argmax(~((values >= least) & (values <= most))))
        raise BadInputError(f"{name(bad)}: its {what} is {values[bad]}; expected {expected}")


def rows_of_events(
    window: Window, names: PulseNames, num_sensors: int, sensor_ids: SensorIds | None, most: int
) -> RaggedRows:
    """Rows of the workload's columns: pulses by sensor and time, those above ``most`` an event left out.

    ``sensor_ids`` are found by position; None: the pulses have ids. Raises BadInputError that names the row.
    """
    place, event_columns, columns = window
    counts_E, name = place.counts_E, place.of
    time_P: Numbers = columns[names.time]
    check_range(time_P, -_MOST_NS, _MOST_NS, name, "time", f"a finite number, at most {_MOST_NS:.2g}")
    time_P = _small_times(time_P, counts_E)
    sensor_P: Numbers = columns[names.sensor[0]]
    if sensor_ids is not None:
        sensor_P = sensor_ids(stacked(names.sensor, columns), name)
    of_detector = f"0 to {num_sensors - 1}: use the table of sensors of this detector"
    check_range(sensor_P, 0, num_sensors - 1, name, "sensor", of_detector)
    charge_P: Numbers = columns[names.charge] if names.charge else np.ones(len(time_P), np.float32)
    check_range(charge_P, 0, _MOST_FLOAT, name, "charge", f"a finite number, 0 to {_MOST_FLOAT:.2g}")
    auxiliary_P: Numbers = np.zeros(len(time_P), np.bool_)
    if names.quality:
        auxiliary_P = columns[names.quality] == 0 if names.quality == "hlc" else columns[names.quality] != 0
    order_P = order_by_sensor_and_time(counts_E, sensor_P, time_P)
    if counts_E.max() > most:
        kept_P = best_pulses(offsets_of(counts_E), time_P, auxiliary_P, most)
        order_P = order_P[kept_P[order_P]]
        counts_E = np.minimum(counts_E, most)
    return RaggedRows(
        counts=counts_E,
        event_columns={
            "enriched": np.zeros((len(counts_E), 1), np.bool_),
            "classical_fits": np.zeros((len(counts_E), len(CLASSICAL_FITS)), np.float32),
            **event_columns,
        },
        particle_columns={
            "pulses": np.stack([time_P[order_P], charge_P[order_P].astype(np.float32, copy=False)], 1),
            "sensor": sensor_P[order_P].astype(np.int16, copy=False)[:, None],
            "auxiliary": auxiliary_P[order_P][:, None],
        },
        large=np.empty(0, np.int64),
        large_events=None,
        particles_dropped=len(time_P) - len(order_P),
    )


def _small_times(time_P: Numbers, counts_E: Int64) -> Float32:
    """Times as float32, ns. Only differences matter: large ones are counted from the event's first pulse."""
    if max(-float(time_P.min()), float(time_P.max())) > _EXACT_NS:
        time_P = time_P if time_P.dtype.kind == "f" else time_P.astype(np.int64)  # holds the differences
        time_P = time_P - np.repeat(np.minimum.reduceat(time_P, offsets_of(counts_E)[:-1]), counts_E)
    return time_P.astype(np.float32, copy=False)


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
    events = len(event_id_E)
    if names is None:
        return {"true_energy": np.zeros((events, 1), np.float32), "topology": topology(None, None, events)[:, None]}

    def name(event: int) -> str:
        return f"{where}, event {event_id_E[event]}"

    azimuth_E, zenith_E = (read[angle].astype(np.float64) for angle in (names.azimuth, names.zenith))
    least, text = (-np.pi, "-π") if names.of_travel else (0.0, "0")
    last, half = 2 * np.pi, np.pi
    check_range(azimuth_E, least - _ROUNDING_RAD, last + _ROUNDING_RAD, name, names.azimuth, f"{text} to 2π radians")
    check_range(zenith_E, -_ROUNDING_RAD, half + _ROUNDING_RAD, name, names.zenith, "0 to π radians")
    azimuth_E, zenith_E = np.clip(azimuth_E, least, last), np.clip(zenith_E, 0, half)
    if names.of_travel:
        azimuth_E, zenith_E = azimuth_E + np.pi, np.pi - zenith_E
    # Tables write a negative number or NaN for an energy that is not known.
    energy_E = read.get(names.energy, np.zeros(events))
    energy_E = np.where(np.isfinite(energy_E) & (energy_E > 0), energy_E, 0.0)
    check_range(energy_E, 0, _MOST_FLOAT, name, "energy", f"at most {_MOST_FLOAT:.2g} GeV")
    return {
        "arrival": np.stack([azimuth_E % (2 * np.pi), zenith_E], 1).astype(np.float32),
        "true_energy": energy_E.astype(np.float32)[:, None],
        "topology": topology(read.get(names.particle), read.get(names.interaction), events)[:, None],
    }


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


Window = tuple[PlaceInFile, dict[str, Array], dict[str, Numbers]]
"""Consecutive whole events: place and number of their pulses, columns of the events, and of the pulses, (P,) each."""


@dataclass(frozen=True)
class FlatEvents:
    """Table of pulses, and its table of events, which is held in memory."""

    pulses: Table
    truth: Table
    names: PulseNames
    event: str
    """Column with the id of the event, of both tables."""

    def windows(self) -> Iterator[Window]:
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

    def _window(self, table: pa.Table, first_row: int, events: _EventTable) -> Window:
        columns = _columns(table, table.column_names, self.pulses.where, first_row)
        ids_P = as_int64(columns.pop(self.event), f"{self.pulses.where}, column {self.event!r}")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(ids_P)) + 1])
        counts_E = np.diff(np.append(starts, len(ids_P)))
        place = PlaceInFile(self.pulses.where, first_row, counts_E, ids_P[starts])
        return place, events.columns_of(ids_P[starts], place, starts), columns


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
        kinds = {event: "integers"}
        if names is not None:
            optional = [one for one in (names.energy, names.particle, names.interaction) if one in truth.columns.names]
            kinds |= dict.fromkeys((names.azimuth, names.zenith), "numbers")
            kinds |= dict.fromkeys(optional, "numbers, if known")
        has_ranges = set(_RANGE) <= set(truth.columns.names)
        kinds |= dict.fromkeys(_RANGE if has_ranges else (), "integers")
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
        self._pulses_E = read[_RANGE[1]][order] - read[_RANGE[0]][order] + 1 if has_ranges else None
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
        if self._pulses_E is not None:
            wrong = first_bad(self._pulses_E[place_E] != place.counts_E)
            if wrong is not None:
                raise BadInputError(
                    f"{place.of(starts_E[wrong])}: it has {place.counts_E[wrong]} pulses, but "
                    f"{self._pulses_E[place_E[wrong]]} by {self._where}; get both files again"
                )
        return {"event_id": ids_E[:, None], **{name: values[place_E] for name, values in self._columns.items()}}


def _columns(data: pa.Table | pa.RecordBatch, names: Sequence[str], where: str, first_row: int) -> dict[str, Numbers]:
    """Numbers by column. Raises BadInputError that names column and row if one is null."""
    return {name: values_of(data.column(name), f"{where}, column {name!r}", first_row) for name in names}


@dataclass(frozen=True)
class OpenedFiles:
    """Files of one detector, opened: see ForeignFiles."""

    sources: Mapping[ForeignFile, FlatEvents]
    geometry: Geometry
    schema: EventSchema
    sensor_ids: SensorIds | None = None
    """Finds ids by positions; None: the pulses have ids."""
    notes: Sequence[str] = ()

    @property
    def files(self) -> list[ForeignFile]:
        """See ForeignFiles."""
        return list(self.sources)

    def version(self, file: ForeignFile) -> str:
        """See ForeignFiles."""
        source = self.sources[file]
        return " with ".join(dict.fromkeys((source.pulses.version(), source.truth.version())))

    def write_beside(self, out: Path) -> None:
        """Write the table of sensors."""
        write_geometry_beside(out, self.geometry)

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of a file that have pulses."""
        source = self.sources[file]
        for window in source.windows():
            yield rows_of_events(window, source.names, len(self.geometry), self.sensor_ids, most)
