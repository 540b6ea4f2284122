"""Neutrino events as the toy detector records them: light, noise, local coincidences, trigger.

Shapes: E events, S sensors, P pulses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import log

import numpy as np
import numpy.typing as npt

from workloads.direction.geometry import SENSORS_A_STRING
from workloads.direction.ice import SCATTERING_M, SCATTERING_RATE_PER_NS
from workloads.direction.simulator.light import (
    JITTER_NS,
    SMALLEST_SHAPE,
    Bool,
    Float32,
    Float64,
    Int64,
    Truth,
    direct_cascade_light,
    direct_track_light,
    expected_light,
)

VERTEX_M = 450.0
"""Vertices are uniform in a cube of ± this around the centre."""

NOISE_PER_NS = 500e-9
"""Noise of a sensor: 500 Hz."""
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

_STRING_KEYS = 64
"""Keys of a string: its sensors and a gap in which no neighbour is found."""


@dataclass(frozen=True)
class EventKind:
    """Population that events are drawn from: energies log-uniform, directions isotropic."""

    track_share: float
    """Share of tracks before the trigger, which keeps more tracks than cascades."""
    energy_min_gev: float
    energy_max_gev: float
    brightness: float = 1.0
    """Factor on all light."""
    chunk_events: int = 32
    """Events simulated at once: their arrays should fit the processor's cache."""


NATURAL = EventKind(0.5, 1e2, 1e5)
CASCADES = EventKind(0.0, 1e4, 1e5)
BRIGHT = EventKind(0.5, 1e4, 1e5, brightness=1500.0, chunk_events=1)
"""Events of 5,000 to 170,000 pulses, of which Kaggle's largest has 178,000: for tests of limits."""


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

    def part(self, start: int, stop: int) -> SimulatedEvents:
        """Events from ``start`` up to ``stop``."""
        first, last = int(self.counts_E[:start].sum()), int(self.counts_E[:stop].sum())
        return SimulatedEvents(
            self.truth.take(slice(start, stop)),
            *(self.vertex_ns_E[start:stop], self.counts_E[start:stop]),
            *(self.sensor_P[first:last], self.time_ns_P[first:last]),
            *(self.charge_pe_P[first:last], self.auxiliary_P[first:last]),
        )


def joined(pieces: Sequence[SimulatedEvents]) -> SimulatedEvents:
    """Events of all pieces, in order."""
    truths = [piece.truth for piece in pieces]
    truth = {one.name: np.concatenate([getattr(piece, one.name) for piece in truths]) for one in fields(Truth)}
    rest = {
        one.name: np.concatenate([getattr(piece, one.name) for piece in pieces])
        for one in fields(SimulatedEvents)
        if one.name != "truth"
    }
    return SimulatedEvents(truth=Truth(**truth), **rest)


class EndlessEvents:
    """Endless sequence of events of one kind; the same generator gives the same events, however many are taken."""

    def __init__(self, kind: EventKind, position_S3: Float32, rng: np.random.Generator) -> None:
        self._chunks = _chunks(kind, position_S3, rng)
        self._rest: list[SimulatedEvents] = []

    def take(self, num_events: int) -> SimulatedEvents:
        """Next events."""
        pieces, found = self._rest, sum(map(len, self._rest))
        while found < num_events:
            pieces.append(next(self._chunks))
            found += len(pieces[-1])
        events = joined(pieces)
        self._rest = [events.part(num_events, found)]
        return events.part(0, num_events)


def _chunks(kind: EventKind, position_S3: Float32, rng: np.random.Generator) -> Iterator[SimulatedEvents]:
    while True:
        yield record(draw_truth(kind, kind.chunk_events, rng), position_S3, rng)


def draw_truth(kind: EventKind, num_events: int, rng: np.random.Generator) -> Truth:
    """Independent events of that kind, most of which trigger."""
    return Truth(
        azimuth_E=rng.uniform(0.0, 2 * np.pi, num_events),
        zenith_E=np.arccos(rng.uniform(-1.0, 1.0, num_events)),
        energy_gev_E=np.exp(rng.uniform(log(kind.energy_min_gev), log(kind.energy_max_gev), num_events)),
        is_track_E=rng.random(num_events) < kind.track_share,
        vertex_E3=rng.uniform(-VERTEX_M, VERTEX_M, (num_events, 3)),
        brightness_E=np.full(num_events, kind.brightness),
    )


def record(truth: Truth, position_S3: Float32, rng: np.random.Generator) -> SimulatedEvents:
    """Events of ``truth`` that trigger, as recorded."""
    event_P, sensor_P, time_P = _pulses(truth, position_S3, rng)
    string_P, place_P = np.divmod(sensor_P, SENSORS_A_STRING)
    num_strings = len(position_S3) // SENSORS_A_STRING
    key_P = (event_P * num_strings + string_P) * _STRING_KEYS + place_P
    order_P, clean_P = _coincidences(key_P, time_P)
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


def _pulses(truth: Truth, position_S3: Float32, rng: np.random.Generator) -> tuple[Int64, Int64, Float64]:
    """Event, sensor and time after the vertex of each pulse: direct and scattered light, and noise."""
    light = expected_light(truth, position_S3)
    num_sensors = len(position_S3)

    def arrivals(
        event_P: Int64, sensor_P: Int64, direct: Callable[[Truth, Int64, Float32], tuple[Float64, Float64]]
    ) -> tuple[Int64, Int64, Float64]:
        direct_ns_P, path_m_P = direct(truth, event_P, position_S3[sensor_P])
        return event_P, sensor_P, direct_ns_P + _delays_ns(path_m_P, rng)

    row_P, sensor_P = np.divmod(_draw_cells(light.track_TS, rng), num_sensors)
    track = arrivals(light.track_event_T[row_P], sensor_P, direct_track_light)
    event_P, sensor_P = np.divmod(_draw_cells(light.cascade_ES, rng), num_sensors)
    cascade = arrivals(event_P, sensor_P, direct_cascade_light)
    num_cells = len(truth) * num_sensors
    num_noise = rng.poisson(num_cells * NOISE_PER_NS * (NOISE_TO_NS - NOISE_FROM_NS))
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
    cells: Int64 = np.searchsorted(upto, drawn * upto[-1], side="right").astype(np.int64)
    return np.minimum(cells, len(upto) - 1)


def _delays_ns(path_m_P: Float64, rng: np.random.Generator) -> Float64:
    """Delay by scattering: Pandel's gamma distribution (astro-ph/0407044); and the jitter of the clock."""
    shape_P = np.maximum(path_m_P / SCATTERING_M, SMALLEST_SHAPE)
    return rng.standard_gamma(shape_P) / SCATTERING_RATE_PER_NS + rng.normal(0.0, JITTER_NS, len(path_m_P))


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
