"""The toy detector again, one event and one formula at a time: what the simulator is compared with.

Metres, nanoseconds, GeV. Constants are written out, so that a wrong one in the simulator shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

C = 0.299792458
PHASE, GROUP = 1.3195, 1.35634
THETA = math.acos(1 / PHASE)
DELAY_SCALE = 1 / (1 / 557 + C / (GROUP * 98))

Array = npt.NDArray[np.float64]
Light = Callable[[Array, Array], Array]
"""Expected photo-electrons by position relative to the vertex and direction of travel."""


@dataclass(frozen=True)
class SimpleEvent:
    """One event with its truth."""

    source: Array
    energy: float
    is_track: bool
    vertex: Array
    vertex_ns: float
    sensor: npt.NDArray[np.int64]
    time: Array
    charge: Array
    clean: npt.NDArray[np.bool_]


def simple_events(num_events: int, position_S3: Array, rng: np.random.Generator) -> list[SimpleEvent]:
    """Events of the natural mixture that trigger."""
    events: list[SimpleEvent] = []
    while len(events) < num_events:
        cos_zenith, azimuth = rng.uniform(-1, 1), rng.uniform(0, 2 * math.pi)
        sine = math.sqrt(1 - cos_zenith**2)
        source = np.array([sine * math.cos(azimuth), sine * math.sin(azimuth), cos_zenith])
        energy, is_track = 10 ** rng.uniform(2, 5), bool(rng.random() < 0.5)
        event = simple_event(source, energy, is_track, rng.uniform(-450, 450, 3), position_S3, rng)
        if event is not None:
            events.append(event)
    return events


def simple_event(
    source: Array, energy: float, is_track: bool, vertex: Array, position_S3: Array, rng: np.random.Generator
) -> SimpleEvent | None:
    """Event as recorded; None: fewer than eight clean pulses."""
    noise_S = rng.poisson(500e-9 * 6000, len(position_S3))
    sensors = [np.repeat(np.arange(len(position_S3)), noise_S)]
    times = [rng.uniform(-2000, 4000, noise_S.sum())]
    sources_of_light = [(cascade_light(energy, is_track), cascade_time)]
    if is_track:
        sources_of_light.append((track_light(energy), track_time))
    for light, direct in sources_of_light:
        counts_S = rng.poisson(light(position_S3 - vertex, -source))
        hit = np.repeat(np.arange(len(position_S3)), counts_S)
        time, path = direct(position_S3[hit] - vertex, -source)
        delay = rng.gamma(np.maximum(path / 33.3, 0.02), DELAY_SCALE) + rng.normal(0, 3, len(hit))
        sensors.append(hit)
        times.append(time + delay)
    sensor, time = np.concatenate(sensors), np.concatenate(times)
    clean = coincident(sensor, time)
    if clean.sum() < 8:
        return None
    vertex_ns = 9800 - time[clean].min()
    time = time + vertex_ns
    kept = (time > 5000) & (time < 22000)
    charge = np.clip(rng.normal(1, 0.3, len(time)), 0.05, None)
    return SimpleEvent(
        source, energy, is_track, vertex, vertex_ns, sensor[kept], np.rint(time[kept]), charge[kept], clean[kept]
    )


def coincident(sensor: npt.NDArray[np.int64], time: Array) -> npt.NDArray[np.bool_]:
    """True for pulses with another within 1 µs in another sensor of the string, at most two places away."""
    string, place = sensor // 60, sensor % 60
    away = np.abs(place[:, None] - place)
    near = (string[:, None] == string) & (away > 0) & (away <= 2) & (np.abs(time[:, None] - time) < 1000)
    return np.asarray(near.any(axis=1), np.bool_)


def cascade_light(energy: float, is_track: bool) -> Light:
    """Light of a cascade, alone or at the middle of a track."""

    def light(offset_S3: Array, travel: Array) -> Array:
        distance_S = np.linalg.norm(offset_S3, axis=1)
        cos_S = offset_S3 @ travel / np.maximum(distance_S, 0.1)
        amount = 0.25 * energy / 50 * (0.3 if is_track else 1.0)
        angle_S = 0.15 + np.exp(-3 * np.abs(cos_S - 1 / PHASE))
        light_S: Array = amount * np.exp(-distance_S / 98) / (1 + distance_S / 3) ** 1.5 * angle_S
        return np.minimum(light_S, 400)

    return light


def track_light(energy: float) -> Light:
    """Light of a track, whose middle is the vertex."""
    length = min(4 * energy, 1500.0)

    def light(offset_S3: Array, travel: Array) -> Array:
        along_S, across_S = seen_from(offset_S3, travel)
        emitted_S = along_S - across_S / math.tan(THETA)
        path_S = across_S / math.sin(THETA)
        amount_S = 6 * (1 + energy / 5e4) * np.exp(-path_S / 98) / (1 + path_S / 8)
        return np.where(np.abs(emitted_S) < length / 2, np.minimum(amount_S, 400), 0.0)

    return light


def cascade_time(offset_P3: Array, travel: Array) -> tuple[Array, Array]:
    """Time of direct light after the vertex, and its path."""
    distance_P = np.linalg.norm(offset_P3, axis=1)
    return distance_P * GROUP / C, distance_P


def track_time(offset_P3: Array, travel: Array) -> tuple[Array, Array]:
    """Time of direct light after the vertex, and its path: first along the track, then through the ice."""
    along_P, across_P = seen_from(offset_P3, travel)
    path_P = across_P / math.sin(THETA)
    emitted_P = along_P - across_P / math.tan(THETA)
    return emitted_P / C + path_P * GROUP / C, path_P


def seen_from(offset_S3: Array, travel: Array) -> tuple[Array, Array]:
    """Distances along and across the direction of travel."""
    along_S = offset_S3 @ travel
    return along_S, np.linalg.norm(offset_S3 - along_S[:, None] * travel, axis=1)
