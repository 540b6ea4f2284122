"""Small toy events for the direction models: tracks through a small detector, and noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from workloads.base.batch import Batch, Microbatch
from workloads.base.segments import Segments
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import Geometry
from workloads.direction.light import EventPulses
from workloads.direction.metrics import unit_and_norm
from workloads.direction.models.network import Detector, EventInput

GEOMETRY = Geometry(
    np.stack(np.meshgrid(np.arange(-2, 3), np.arange(-2, 3), np.arange(-4, 5), indexing="ij"), -1)
    .reshape(-1, 3)
    .astype(np.float32)
    * np.array([100, 100, 60], np.float32)
)
"""225 sensors: 5 × 5 strings of 9."""
POSITION_S3 = torch.from_numpy(GEOMETRY.position_S3)
DETECTOR = Detector(GEOMETRY)
_LIGHT_SPEED_M_NS = 0.3


def direction_microbatch(
    num_events: int = 8,
    seed: int = 0,
    counts: list[int] | None = None,
    *,
    enriched: list[bool] | None = None,
    auxiliary: float = 0.3,
    first: float = 1.0,
) -> Microbatch:
    """Events whose pulses follow a track: its direction can be learned. Classical fits are near the truth.

    Energies follow the square of the number of pulses, with a spread of 0.22 of their decimal logarithm.
    """
    random = np.random.default_rng(seed)
    counts_E = np.array(counts if counts is not None else random.integers(5, 40, num_events))
    num_events = len(counts_E)
    offsets_E1 = np.concatenate([[0], np.cumsum(counts_E)])
    event_P = np.repeat(np.arange(num_events), counts_E)
    source_E3, _ = unit_and_norm(random.normal(size=(num_events, 3)))
    start_E3 = random.uniform(-100, 100, (num_events, 3))
    sensor_P = np.concatenate(
        [np.zeros(0, np.int64), *(_along(*of, random) for of in zip(start_E3, source_E3, counts_E, strict=True))]
    )
    travelled_P = -((GEOMETRY.position_S3[sensor_P] - start_E3[event_P]) * source_E3[event_P]).sum(1)
    time_P = 1e4 + travelled_P / _LIGHT_SPEED_M_NS + random.exponential(30, len(sensor_P))
    order_P = np.lexsort((time_P, sensor_P, event_P))
    sensor_P, time_P = sensor_P[order_P], time_P[order_P]
    opens_P = np.concatenate([[True], (np.diff(sensor_P) != 0) | (np.diff(event_P) != 0)])[: len(sensor_P)]
    pulses_P2 = np.stack([time_P, random.uniform(0.5, 3, len(time_P))], 1)
    pulses_P2[:1] *= first
    auxiliary_P = random.random(len(time_P)) < auxiliary
    fits_EF = _fits(source_E3, start_E3, random)
    energy_E1 = (1 + counts_E[:, None]) ** 2 * random.lognormal(0, 0.5, (num_events, 1))
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=torch.from_numpy(offsets_E1.astype(np.int64)),
        host_offsets_E1=offsets_E1.astype(np.int64),
        event_columns={
            "source_direction": torch.from_numpy(source_E3.astype(np.float32)),
            "classical_fits": torch.from_numpy(fits_EF.astype(np.float32)),
            "enriched": torch.tensor(enriched or [False] * num_events).reshape(-1, 1),
            "true_energy": torch.from_numpy(energy_E1.astype(np.float32)),
            "topology": (torch.arange(num_events) % 2).to(torch.int8).reshape(-1, 1),
        },
        particle_columns={
            "pulses": torch.from_numpy(pulses_P2.astype(np.float32)),
            "sensor": torch.from_numpy(sensor_P.astype(np.int16)).reshape(-1, 1),
            "auxiliary": torch.from_numpy(auxiliary_P).reshape(-1, 1),
            "opens_sensor": torch.from_numpy(opens_P).reshape(-1, 1),
        },
        num_events=num_events,
        num_particles=len(sensor_P),
    )


def direction_batch(num_events: int = 8, seed: int = 0, counts: list[int] | None = None) -> Batch:
    return Batch((direction_microbatch(num_events, seed, counts),))


def event_input(microbatch: Microbatch, detector: Detector = DETECTOR) -> EventInput:
    return EventInput.from_microbatch(microbatch, detector)


def segments_of(*counts: int) -> Segments:
    return Segments.from_counts(torch.tensor(counts, dtype=torch.int64), sum(counts))


def clean_event(position_P3: Tensor, time_P: Tensor, geometry: Geometry) -> EventPulses:
    """One event of clean pulses of one photo-electron."""
    ones_P = torch.ones_like(time_P)
    return EventPulses(position_P3, time_P, ones_P, ones_P.bool(), segments_of(len(time_P)), geometry)


def _along(start_3: np.ndarray, source_3: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Sensors near points of the track."""
    points_P3 = start_3 - source_3 * random.uniform(-200, 200, (count, 1)) + random.normal(0, 30, (count, 3))
    apart_PS = np.linalg.norm(points_P3[:, None] - GEOMETRY.position_S3[None], axis=2)
    return np.asarray(apart_PS.argmin(1))


def _fits(source_E3: np.ndarray, start_E3: np.ndarray, random: np.random.Generator) -> np.ndarray:
    num = len(source_E3)
    fits = {name: random.normal(size=num) for name in CLASSICAL_FITS}
    for fit, spread in (("line", 0.3), ("track", 0.1)):
        fitted_E3, _ = unit_and_norm(source_E3 + random.normal(0, spread, source_E3.shape))
        fits |= {f"{fit}_{axis}": fitted_E3[:, number] for number, axis in enumerate("xyz")}
        fits |= {f"{fit}_at_{axis}_m": start_E3[:, number] for number, axis in enumerate("xyz")}
    fits |= {f"cascade_{axis}": source_E3[:, number] / 2 for number, axis in enumerate("xyz")}
    fits |= {f"vertex_{axis}_m": start_E3[:, number] for number, axis in enumerate("xyz")}
    return np.stack([fits[name] for name in CLASSICAL_FITS], 1)
