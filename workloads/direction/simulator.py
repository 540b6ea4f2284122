"""Simulator of neutrino events with known truth, and the data sets that it writes.

A toy detector records light, noise, local coincidences and a trigger. A track shines along its length in a Cherenkov
cone, a cascade from one point, most of it near that cone. The medium is the same everywhere.

Data sets are in the converted layout:

    OUT/sensor_geometry.csv
    OUT/events_00000.parquet
    OUT/events_00001.parquet

A file depends only on the seed, its index and its numbers of events: each can be made alone and in any order. Its
events of one kind are the same whether or not there are others. Same versions of numpy and pyarrow on the same kind of
CPU: same bytes. E events, S sensors, P pulses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.files.layout import schema_of, to_table, writer_options
from common.files.rows import RaggedRows, offsets_of
from common.options import OutputPath
from common.paths import user_path
from common.unit_arrays import Array
from workloads.base.dataset import (
    Written,
    check_request,
    prepare_folder,
    share,
    simulate_shown,
    write_files,
    write_tables,
)
from workloads.base.random_streams import file_stream
from workloads.direction import light
from workloads.direction.columns import CASCADE, CLASSICAL_FITS, DIRECTION, TRACK
from workloads.direction.geometry import (
    ARRAYS,
    GEOMETRY_FILE,
    LIGHT_SPEED_M_NS,
    MEDIA,
    Geometry,
    Medium,
    write_geometry,
)
from workloads.direction.grouping import Bool, Float32, Float64, Int64, unit_vectors

# ---- Light.

SMALLEST_SHAPE = 0.02
"""Smallest shape of the Gamma distribution of the delay by scattering."""


@dataclass(frozen=True)
class Truth:
    """Neutrino events before the detector sees them."""

    azimuth_E: Float64
    """Azimuth of the source, rad."""
    zenith_E: Float64
    energy_gev_E: Float64
    is_track_E: Bool
    vertex_E3: Float64
    """Position of the cascade, the middle of a track, m."""

    def __len__(self) -> int:
        return len(self.energy_gev_E)

    @property
    def travel_E3(self) -> Float64:
        """Unit vectors of the direction of travel: away from the source."""
        return -unit_vectors(np.stack([self.azimuth_E, self.zenith_E], 1))

    def take(self, events: Bool | Int64) -> Truth:
        """Some of the events."""
        return Truth(*(getattr(self, field.name)[events] for field in fields(self)))


def expected_light(truth: Truth, geometry: Geometry) -> tuple[Float32, Int64, Float32]:
    """Return the photo-electrons that are expected in each sensor. float32: ± 1 % nearer than 3 m, elsewhere much less.

    Direct light of the tracks alone (tracks, S), the event of each of its rows, and light of cascades (E, S).
    """
    position_S3, medium = geometry.position_S3, geometry.medium
    travel_E3, vertex_E3 = truth.travel_E3.astype(np.float32), truth.vertex_E3.astype(np.float32)
    square_S = (position_S3**2).sum(1)
    along_ES = travel_E3 @ position_S3.T
    along_ES -= (travel_E3 * vertex_E3).sum(1)[:, None]
    range2_ES = (-2 * vertex_E3) @ position_S3.T
    range2_ES += square_S
    range2_ES += (vertex_E3**2).sum(1)[:, None]
    np.maximum(range2_ES, 0.01, out=range2_ES)
    tracks_T = np.flatnonzero(truth.is_track_E)
    return (
        _track_light(truth.take(truth.is_track_E), along_ES[tracks_T], range2_ES[tracks_T], medium),
        tracks_T,
        _cascade_light(truth, along_ES, range2_ES, medium),
    )


def _track_light(truth: Truth, along_TS: Float32, range2_TS: Float32, medium: Medium) -> Float32:
    """Light of tracks: q exp(-d / absorption) / (1 + d / 8 m) where the cone's origin is on the track.

    d = ρ / sin(Cherenkov angle) is the length of the light's path, ρ the distance to the line.
    """
    rho_TS = np.sqrt(np.maximum(range2_TS - along_TS * along_TS, np.float32(0.01)))
    origin_TS = np.abs(along_TS - rho_TS * np.float32(1 / (medium.sin_cherenkov / medium.cos_cherenkov)))
    amount_T = light.TRACK_LIGHT_PE * (1 + truth.energy_gev_E / light.TRACK_LOSS_GEV)
    light_TS = np.exp(rho_TS * np.float32(-1 / (medium.sin_cherenkov * medium.absorption_m)))
    light_TS /= 1 + rho_TS * np.float32(1 / (medium.sin_cherenkov * light.TRACK_NEAR_M))
    light_TS *= amount_T.astype(np.float32)[:, None]
    length_T = np.minimum(truth.energy_gev_E / light.TRACK_GEV_PER_M, light.LONGEST_TRACK_M)
    light_TS *= origin_TS < (length_T / 2).astype(np.float32)[:, None]
    return np.minimum(light_TS, np.float32(light.MOST_PE), out=light_TS)


def _cascade_light(truth: Truth, along_ES: Float32, range2_ES: Float32, medium: Medium) -> Float32:
    """Light of cascades: q exp(-R / absorption) / (1 + R / 3 m)^1.5, times the share at that angle to the direction."""
    range_ES = np.sqrt(range2_ES)
    angle_ES = along_ES / np.maximum(range_ES, np.float32(0.1))
    angle_ES -= np.float32(medium.cos_cherenkov)
    np.abs(angle_ES, out=angle_ES)
    angle_ES *= np.float32(-light.CASCADE_WIDTH)
    np.exp(angle_ES, out=angle_ES)
    angle_ES += np.float32(light.CASCADE_ISOTROPIC)
    near_ES = 1 + range_ES * np.float32(1 / light.CASCADE_NEAR_M)
    near_ES *= np.sqrt(near_ES)
    range_ES *= np.float32(-1 / medium.absorption_m)
    light_ES = np.exp(range_ES, out=range_ES)
    light_ES *= angle_ES
    light_ES /= near_ES
    amount_E = light.CASCADE_LIGHT_PE_PER_GEV * truth.energy_gev_E
    amount_E = np.where(truth.is_track_E, light.TRACKS_CASCADE, 1.0) * amount_E
    light_ES *= amount_E.astype(np.float32)[:, None]
    return np.minimum(light_ES, np.float32(light.MOST_PE), out=light_ES)


def direct_track_light(truth: Truth, event_P: Int64, position_P3: Float32, medium: Medium) -> tuple[Float64, Float64]:
    """Time after the vertex (ns) and length (m) of the unscattered path from a track to each pulse's sensor. (P,) each.

    t = l / c + ρ / c · (n_group / sin θ - 1 / tan θ), l the distance along the track, θ the Cherenkov angle.
    """
    along_P, range2_P = _seen_from_vertex(truth, event_P, position_P3)
    rho_P = np.sqrt(np.maximum(range2_P - along_P**2, 0.01))
    return along_P / LIGHT_SPEED_M_NS + rho_P * medium.cone_delay_ns_m, rho_P / medium.sin_cherenkov


def direct_cascade_light(truth: Truth, event_P: Int64, position_P3: Float32, medium: Medium) -> tuple[Float64, Float64]:
    """Time after the vertex (ns) and length (m) of the straight path from the vertex to each pulse's sensor."""
    _, range2_P = _seen_from_vertex(truth, event_P, position_P3)
    range_P = np.sqrt(np.maximum(range2_P, 0.01))
    return range_P * medium.point_delay_ns_m, range_P


def _seen_from_vertex(truth: Truth, event_P: Int64, position_P3: Float32) -> tuple[Float64, Float64]:
    """Distance along the direction of travel, and squared distance."""
    from_vertex_P3 = position_P3 - truth.vertex_E3[event_P]
    along_P = (from_vertex_P3 * truth.travel_E3[event_P]).sum(1)
    return along_P, (from_vertex_P3**2).sum(1)


# ---- Events.

VERTEX_M = 450.0
"""Vertices in an array of ARRAYS are uniform in a cube of ± this around the origin."""

NOISE_FROM_NS, NOISE_TO_NS = -2000.0, 4000.0
"""Time after the vertex in which there is noise."""

COINCIDENCE_NS = 1000.0
COINCIDENCE_SENSORS = 2
"""A pulse is clean if a sensor at most this far away on its string has one within COINCIDENCE_NS."""

TRIGGER_PULSES = 8
"""Clean pulses of an event that is recorded."""

FIRST_CLEAN_NS = 9800.0
"""Recorded time of the first clean pulse."""
RECORD_FROM_NS, RECORD_TO_NS = 5000.0, 22000.0

CHARGE_PE, CHARGE_SPREAD_PE, LEAST_CHARGE_PE = 1.0, 0.3, 0.05
"""Charge of a pulse: mean, standard deviation, and the least one measured."""

_STRING_M, _GAP_KEYS = 5.0, 4
"""Horizontal distance within which sensors are of one string, as strings lean by less, and are 13 m apart or more; and
the numbers between the sensors of two strings, in which no neighbour is found."""

_MOST_UNSEEN = 10_000
"""Events in a row of which none triggers, as in an array too sparse, after which the simulation gives up."""


@dataclass(frozen=True)
class EventKind:
    """Population that events are drawn from: energies log-uniform, directions isotropic."""

    track_share: float
    """Share of tracks before the trigger, which keeps more tracks than cascades."""
    energy_min_gev: float
    energy_max_gev: float


NATURAL = EventKind(0.5, 1e2, 1e5)
CASCADES = EventKind(0.0, 1e4, 1e5)
_CHUNK_EVENTS = 32
"""Events simulated at once: their arrays should fit the processor's cache."""


class SimulatedArray:
    """Sensors on strings, and the volume of the vertices of events."""

    def __init__(self, geometry: Geometry, vertices_3: tuple[float | Float64, float | Float64] | None = None) -> None:
        """``vertices_3``: bounds of the volume, m; by default the box of all sensors, as far as light reaches at least.

        Strings are told by their places; those of a string are numbered from the top.
        """
        self.geometry = geometry
        position_S3 = geometry.position_S3.astype(np.float64)
        string_S, strings = np.full(len(geometry), -1), 0
        while (free := np.flatnonzero(string_S < 0)).size:
            apart_m = np.linalg.norm(position_S3[free, :2] - position_S3[free[0], :2], axis=1)
            string_S[free[apart_m < _STRING_M]] = strings
            strings += 1
        order_S = np.lexsort((-position_S3[:, 2], string_S))
        self.num_keys = len(geometry) + _GAP_KEYS * strings
        self.key_S = np.empty(len(geometry), np.int64)
        """Consecutive for neighbours on a string, with a gap between strings."""
        self.key_S[order_S] = np.arange(len(geometry)) + _GAP_KEYS * string_S[order_S]
        low_3, high_3 = position_S3.min(0), position_S3.max(0)
        middle_3, half_3 = (low_3 + high_3) / 2, np.maximum((high_3 - low_3) / 2, geometry.medium.reach_m / 2)
        self.vertices_3 = vertices_3 or (middle_3 - half_3, middle_3 + half_3)


@dataclass(frozen=True)
class SimulatedEvents:
    """Recorded events; pulses in the order of event, sensor and time."""

    truth: Truth
    vertex_ns_E: Float64
    """Time at the vertex, on the clock of the pulses."""
    counts_E: Int64
    """Pulses of each event."""
    sensor_P: npt.NDArray[np.int16]
    time_ns_P: Float32
    """Whole nanoseconds, as in Kaggle's files."""
    charge_pe_P: Float32
    auxiliary_P: Bool

    def __len__(self) -> int:
        return len(self.counts_E)

    def take(self, order_E: Int64) -> SimulatedEvents:
        """Events in the given order, each with its pulses."""
        counts_E = self.counts_E[order_E]
        shift_E = offsets_of(self.counts_E)[:-1][order_E] - offsets_of(counts_E)[:-1]
        pulse_P = np.arange(int(counts_E.sum())) + np.repeat(shift_E, counts_E)
        of_pulses = (getattr(self, field.name)[pulse_P] for field in fields(self)[3:])
        return SimulatedEvents(self.truth.take(order_E), self.vertex_ns_E[order_E], counts_E, *of_pulses)


def joined(pieces: Sequence[SimulatedEvents]) -> SimulatedEvents:
    """Events of all pieces, in order."""

    def columns(parts: Sequence[Any], names: Iterable[str]) -> Iterator[Any]:
        return (np.concatenate([getattr(part, name) for part in parts]) for name in names)

    truth = Truth(*columns([piece.truth for piece in pieces], (field.name for field in fields(Truth))))
    return SimulatedEvents(truth, *columns(pieces, (field.name for field in fields(SimulatedEvents)[1:])))


class EndlessEvents:
    """Endless sequence of events of one kind; the same generator gives the same events, however many are taken."""

    def __init__(self, kind: EventKind, array: SimulatedArray, rng: np.random.Generator) -> None:
        self._kind, self._array, self._rng = kind, array, rng
        self._rest: list[SimulatedEvents] = []

    def take(self, num_events: int) -> SimulatedEvents:
        """Next events. Raises BadInputError if none of many triggers."""
        pieces, found, unseen = self._rest, sum(map(len, self._rest)), 0
        while found < num_events:
            truth = draw_truth(self._kind, _CHUNK_EVENTS, self._rng, self._array)
            pieces.append(record(truth, self._array, self._rng))
            found += len(pieces[-1])
            unseen = 0 if len(pieces[-1]) else unseen + _CHUNK_EVENTS
            if unseen >= _MOST_UNSEEN:
                raise BadInputError(
                    f"none of {unseen:,} events has the {TRIGGER_PULSES} clean pulses of a trigger in the"
                    f" {len(self._array.geometry):,} sensors of this array: use a denser or a larger one"
                )
        events = joined(pieces)
        self._rest = [events.take(np.arange(num_events, found))]
        return events.take(np.arange(num_events))


def draw_truth(kind: EventKind, num_events: int, rng: np.random.Generator, array: SimulatedArray) -> Truth:
    """Independent events of that kind, most of which trigger."""
    low, high = array.vertices_3
    return Truth(
        azimuth_E=rng.uniform(0.0, 2 * np.pi, num_events),
        zenith_E=np.arccos(rng.uniform(-1.0, 1.0, num_events)),
        energy_gev_E=np.exp(rng.uniform(log(kind.energy_min_gev), log(kind.energy_max_gev), num_events)),
        is_track_E=rng.random(num_events) < kind.track_share,
        vertex_E3=rng.uniform(low, high, (num_events, 3)),
    )


def record(truth: Truth, array: SimulatedArray, rng: np.random.Generator) -> SimulatedEvents:
    """Events of ``truth`` that trigger, as recorded."""
    event_P, sensor_P, time_P = _pulses(truth, array.geometry, rng)
    order_P, clean_P = _coincidences(event_P * array.num_keys + array.key_S[sensor_P], time_P)
    # From the order of strings to that of sensors, which is the same where sensors are numbered along the strings.
    by_sensor_P = np.argsort((event_P * len(array.geometry) + sensor_P)[order_P], kind="stable")
    order_P, clean_P = order_P[by_sensor_P], clean_P[by_sensor_P]
    event_P, sensor_P, time_P = event_P[order_P], sensor_P[order_P], time_P[order_P]

    triggered_E = np.bincount(event_P[clean_P], minlength=len(truth)) >= TRIGGER_PULSES
    first_E = np.full(len(truth), np.inf)
    np.minimum.at(first_E, event_P[clean_P], time_P[clean_P])
    vertex_ns_E = FIRST_CLEAN_NS - first_E
    time_P = time_P + vertex_ns_E[event_P]
    kept_P = triggered_E[event_P] & (time_P > RECORD_FROM_NS) & (time_P < RECORD_TO_NS)
    charge_P = rng.normal(CHARGE_PE, CHARGE_SPREAD_PE, int(kept_P.sum()))
    return SimulatedEvents(
        truth=truth.take(triggered_E),
        vertex_ns_E=vertex_ns_E[triggered_E],
        counts_E=np.bincount(event_P[kept_P], minlength=len(truth))[triggered_E],
        sensor_P=sensor_P[kept_P].astype(np.int16),
        time_ns_P=np.rint(time_P[kept_P]).astype(np.float32),
        charge_pe_P=np.maximum(charge_P, LEAST_CHARGE_PE).astype(np.float32),
        auxiliary_P=~clean_P[kept_P],
    )


def _pulses(truth: Truth, geometry: Geometry, rng: np.random.Generator) -> tuple[Int64, Int64, Float64]:
    """Event, sensor and time after the vertex of each pulse: direct and scattered light, and noise."""
    track_TS, track_event_T, cascade_ES = expected_light(truth, geometry)
    num_sensors, medium = len(geometry), geometry.medium

    def arrivals(
        event_P: Int64, sensor_P: Int64, direct: Callable[[Truth, Int64, Float32, Medium], tuple[Float64, Float64]]
    ) -> tuple[Int64, Int64, Float64]:
        direct_ns_P, path_m_P = direct(truth, event_P, geometry.position_S3[sensor_P], medium)
        return event_P, sensor_P, direct_ns_P + _delays_ns(path_m_P, medium, rng)

    row_P, sensor_P = np.divmod(_draw_cells(track_TS, rng), num_sensors)
    track = arrivals(track_event_T[row_P], sensor_P, direct_track_light)
    event_P, sensor_P = np.divmod(_draw_cells(cascade_ES, rng), num_sensors)
    cascade = arrivals(event_P, sensor_P, direct_cascade_light)
    num_cells = len(truth) * num_sensors
    num_noise = rng.poisson(num_cells * light.NOISE_PER_NS * (NOISE_TO_NS - NOISE_FROM_NS))
    event_P, sensor_P = np.divmod(rng.integers(num_cells, size=num_noise), num_sensors)
    noise = event_P, sensor_P, rng.uniform(NOISE_FROM_NS, NOISE_TO_NS, num_noise)
    event, sensor, time = (np.concatenate(parts) for parts in zip(track, cascade, noise, strict=True))
    return event, sensor, time


def _draw_cells(expected: Float32, rng: np.random.Generator) -> Int64:
    """Flat index of the cell of each photo-electron: a Poisson number in each cell, drawn by their total."""
    upto = np.cumsum(expected, dtype=np.float64)
    if not len(upto):
        return np.zeros(0, np.int64)
    drawn = rng.random(rng.poisson(upto[-1]))
    drawn.sort()
    cells: Int64 = np.searchsorted(upto, drawn * upto[-1], side="right")
    return np.minimum(cells, len(upto) - 1)


def _delays_ns(path_m_P: Float64, medium: Medium, rng: np.random.Generator) -> Float64:
    """Delay by scattering: Pandel's gamma distribution (astro-ph/0407044); and the jitter of the clock."""
    shape_P = np.maximum(path_m_P / medium.scattering_m, SMALLEST_SHAPE)
    return rng.standard_gamma(shape_P) / medium.scattering_rate_per_ns + rng.normal(0.0, light.JITTER_NS, len(path_m_P))


def _coincidences(key_P: Int64, time_P: Float64) -> tuple[Int64, Bool]:
    """Order of the pulses by sensor and time, and, in that order, True for pulses with a neighbour in time and place.

    ``key_P``: number of the event and sensor, consecutive for neighbours on a string, with a gap between strings.
    """
    if not len(time_P):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    # One number for sensor and time: further apart than any coincidence unless the sensor is the same.
    since_P = time_P - time_P.min()
    span = since_P.max() + 2 * COINCIDENCE_NS
    place_P = key_P * span + since_P
    order_P = np.argsort(place_P, kind="stable")
    place_P = place_P[order_P]
    clean_P = np.zeros(len(place_P), np.bool_)
    for away in range(-COINCIDENCE_SENSORS, COINCIDENCE_SENSORS + 1):
        if away:
            there_P = place_P + away * span
            next_P = np.searchsorted(place_P, there_P - COINCIDENCE_NS, side="right")
            found_P = place_P[np.minimum(next_P, len(place_P) - 1)]
            clean_P |= np.abs(found_P - there_P) < COINCIDENCE_NS
    return order_P, clean_P


# ---- Data sets.

ROW_GROUP_EVENTS = 4000

KINDS = (NATURAL, CASCADES)
_ORDER = 3
"""Key of the random numbers that mix a file's kinds; those of the kinds are their places. A third kind is gone."""

# An event id is seed, file and place in it, of these numbers of bits: 53 in all, exact also as a float64.
_FILE_BITS, _PLACE_BITS = 16, 21
_SEEDS = 2**16
MOST_FILES, MOST_EVENTS_A_FILE = 2**_FILE_BITS, 2**_PLACE_BITS


@dataclass(frozen=True)
class EventsPlan:
    """Numbers of events and files of a data set. Raises BadInputError."""

    num_events: int
    """Events of the natural mixture: tracks and cascades."""
    num_files: int
    seed: int
    num_cascades: int = 0
    """Cascades of high energy added to these, at random places of every file."""
    array: str = "icecube"
    """Sensors of the detector: a key of ARRAYS, or a file with a table of sensors."""
    medium: str | None = None
    """Medium of the detector: a key of MEDIA. None: that of the table, or ice."""

    def __post_init__(self) -> None:
        check_request(self.num_events, self.num_files, self.seed)
        if self.num_cascades < 0:
            raise BadInputError(f"cascades = {self.num_cascades}: must not be negative")
        if self.array not in ARRAYS and not user_path(self.array).is_file():
            known = ", ".join(ARRAYS)
            raise BadInputError(f"array = {self.array!r}: use one of {known}, or the file of a table of sensors")
        if self.medium is not None and self.medium not in MEDIA:
            raise BadInputError(f"medium = {self.medium!r}: use one of {', '.join(MEDIA)}")
        if self.num_files > MOST_FILES:
            raise BadInputError(f"files = {self.num_files}: event ids allow at most {MOST_FILES:,}")
        if (rows := sum(self.numbers(0))) > MOST_EVENTS_A_FILE:
            raise BadInputError(
                f"{rows:,} events a file: event ids allow at most {MOST_EVENTS_A_FILE:,}; use more files"
            )

    @cached_property
    def geometry(self) -> Geometry:
        """Positions of the sensors. Raises BadInputError."""
        if self.array in ARRAYS:
            geometry = ARRAYS[self.array]()
        else:
            # Not at the top: with SQLite and more, which a simulation with one of ARRAYS needn't wait for.
            from workloads.direction.importers import geometry_of_table

            geometry = geometry_of_table(user_path(self.array))
        return replace(geometry, medium=MEDIA[self.medium]) if self.medium is not None else geometry

    @cached_property
    def detector(self) -> SimulatedArray:
        """Sensors and volume of the events."""
        return SimulatedArray(self.geometry, (-VERTEX_M, VERTEX_M) if self.array in ARRAYS else None)

    def numbers(self, file_index: int) -> tuple[int, ...]:
        """Events of each kind in one file."""
        return tuple(share(total, self.num_files, file_index) for total in (self.num_events, self.num_cascades))


@dataclass(frozen=True)
class EventRows:
    """Consecutive events of a file."""

    event_id_E: npt.NDArray[np.int64]
    added_E: npt.NDArray[np.bool_]
    """True for events that are not of the natural mixture."""
    events: SimulatedEvents

    def __len__(self) -> int:
        return len(self.event_id_E)


def file_rows(plan: EventsPlan, file_index: int) -> Iterator[EventRows]:
    """Events of one file, a row group at a time: the kinds mixed, all orders being equally likely."""
    sources = [
        EndlessEvents(kind, plan.detector, file_stream(plan.seed, file_index, key)) for key, kind in enumerate(KINDS)
    ]
    kind_E = np.repeat(np.arange(len(KINDS)), plan.numbers(file_index))
    file_stream(plan.seed, file_index, _ORDER).shuffle(kind_E)
    first_id = (((plan.seed % _SEEDS) << _FILE_BITS) + file_index) << _PLACE_BITS
    for start in range(0, len(kind_E), ROW_GROUP_EVENTS):
        here_E = kind_E[start : start + ROW_GROUP_EVENTS]
        pieces = [sources[key].take(int(number)) for key, number in enumerate(np.bincount(here_E)) if number]
        events = joined(pieces)
        if len(pieces) > 1:  # row i is the next event of its kind
            events = events.take(np.argsort(np.argsort(here_E, kind="stable")))
        event_id_E = first_id + np.arange(start, start + len(here_E), dtype=np.int64)
        yield EventRows(event_id_E, here_E != KINDS.index(NATURAL), events)


OWN_FILE = re.compile(rf"(events_\d+\.parquet|{re.escape(GEOMETRY_FILE)})(\.part)?")
_STORED = DIRECTION.with_all_stored()


def write_dataset(out: Path, plan: EventsPlan, *, overwrite: bool = False) -> Written:
    """Write all files.

    Raises BadInputError if ``out`` holds files already; with ``overwrite``, if it holds any but those of this
    writer, which are removed first.
    """
    prepare_folder(out, overwrite=overwrite, own_file=OWN_FILE, content="simulated neutrino events")
    write_geometry(out / GEOMETRY_FILE, plan.geometry)
    return write_files(lambda index: write_file(out / file_name(index), plan, index), range(plan.num_files))


def file_name(file_index: int) -> str:
    """Name of one file."""
    return f"events_{file_index:05d}.parquet"


def write_file(path: Path, plan: EventsPlan, file_index: int) -> Written:
    """Write one file of the data set, completely or not at all."""
    schema = schema_of(_STORED)
    tables = ((table_of(rows), len(rows), len(rows.events.sensor_P)) for rows in file_rows(plan, file_index))
    return write_tables(path, schema, tables, ROW_GROUP_EVENTS, **writer_options(schema, "zstd"))


def table_of(rows: EventRows) -> pa.Table:
    """Rows in the converted layout. The classical fits are zeros: not computed."""
    events, truth = rows.events, rows.events.truth
    event_columns: dict[str, Array] = {
        "event_id": rows.event_id_E[:, None],
        "arrival": np.stack([truth.azimuth_E, truth.zenith_E], 1).astype(np.float32),
        "true_energy": truth.energy_gev_E.astype(np.float32)[:, None],
        "topology": np.where(truth.is_track_E, TRACK, CASCADE).astype(np.int8)[:, None],
        "enriched": rows.added_E[:, None],
        "classical_fits": np.zeros((len(rows), len(CLASSICAL_FITS)), np.float32),
    }
    pulse_columns: dict[str, Array] = {
        "pulses": np.stack([events.time_ns_P, events.charge_pe_P], 1),
        "sensor": events.sensor_P[:, None],
        "auxiliary": events.auxiliary_P[:, None],
    }
    rows_of_all = RaggedRows(events.counts_E, event_columns, pulse_columns, np.zeros(0, np.int64), None)
    return to_table([rows_of_all], _STORED)


# ---- The command.


def simulate_dataset(
    out: Path,
    *,
    events: int,
    files: int,
    seed: int,
    cascades: int = 0,
    array: str = "icecube",
    medium: str | None = None,
    force: bool = False,
) -> Written:
    """Write neutrino events to the folder ``out``, with ``cascades`` added. Raises BadInputError."""
    return write_dataset(out, EventsPlan(events, files, seed, cascades, array, medium), overwrite=force)


@click.command(name="simulate")
@click.argument("out", type=OutputPath(file_okay=False))
@click.option("--events", default=24_000, show_default=True, help="Events of the natural mixture, in total.")
@click.option("--files", default=8, show_default=True, help="Files in total.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--cascades",
    default=0,
    show_default=True,
    help="Cascades above 10 TeV in addition to --events, spread over all files: for models that see too few.",
)
@click.option(
    "--array",
    default="icecube",
    show_default=True,
    help="Sensors: icecube (5,160 on 86 strings), hex (91 strings of a regular hexagon), or a table of sensors: "
    f"{GEOMETRY_FILE}, or GraphNeT's, in Parquet.",
)
@click.option("--medium", type=click.Choice(list(MEDIA)), help="Default: that of the table of sensors, else ice.")
@click.option("--force", is_flag=True, help="Replace a data set that an earlier run wrote to OUT.")
def simulate(out: Path, **options: Any) -> None:
    """Write neutrino events with known truth to OUT, as a toy detector sees them.

    A toy for demos and tests, not a simulation of a detector: see docs/explanation/physics.md.

    \b
    Example:
      icestream simulate demo --workload direction --events 24000 --cascades 12000 --files 12 --seed 1
    """
    simulate_shown(out, "pulses", lambda: simulate_dataset(out, **options))
