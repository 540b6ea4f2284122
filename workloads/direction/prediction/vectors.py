"""Vectors that a trained model predicts for the events of a unit.

E events, P pulses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.config import StreamConfig
from common.unit_arrays import UnitArrays
from workloads.base.batch import Microbatch
from workloads.base.trained_run import TrainedRun
from workloads.direction.grouping import group_by_sensor


class DirectionPredictor(Protocol):
    """Trained model of any kind."""

    @property
    def run(self) -> TrainedRun:
        """Its source."""

    @property
    def position_S3(self) -> Tensor:
        """Sensors of the detector that it was trained for, (S, 3), m."""

    def predict(self, microbatch: Microbatch) -> Tensor:
        """Vectors p of the events: direction p / |p|, concentration |p|. -> (E, 3)."""


@dataclass(frozen=True)
class PulseLimits:
    """Bounds on what the model sees at once: those of its training."""

    most_of_event: int
    """Larger events lose their last auxiliary, then their last other pulses."""
    most_at_once: int
    """Pulses in one call of the model."""

    @classmethod
    def of(cls, stream: StreamConfig) -> PulseLimits:
        """Limits of the run's stream."""
        return cls(stream.outlier_above, stream.max_particles)


@dataclass(frozen=True)
class PredictedVectors:
    """Predictions for the events of a unit."""

    p_E3: npt.NDArray[np.float64]
    """Direction p / |p|, concentration |p|; 0 for an event without pulses."""
    num_cut: int
    """Events that were larger than the limit."""


def predicted_vectors(
    predictor: DirectionPredictor, arrays: UnitArrays, limits: PulseLimits, device: torch.device
) -> PredictedVectors:
    """Predictions for all events, in their order."""
    cut, num_cut = cut_to(arrays, limits.most_of_event)
    if not len(cut.offsets) - 1:
        return PredictedVectors(np.zeros((0, 3)), 0)
    parts = microbatch_of(cut, device).chunks(limits.most_at_once)
    p_E3 = torch.cat([predictor.predict(part) for part in parts]).double().cpu().numpy()
    p_E3[np.diff(cut.offsets) == 0] = 0.0
    return PredictedVectors(p_E3, num_cut)


def cut_to(arrays: UnitArrays, most: int) -> tuple[UnitArrays, int]:
    """Events with at most ``most`` pulses each, and the number of events that had more.

    Pulses that are not auxiliary are kept first, of both kinds the earliest. The arrays themselves if none is larger.
    """
    counts_E = np.diff(arrays.offsets)
    large = np.flatnonzero(counts_E > most)
    if not len(large):
        return arrays, 0
    time_P, auxiliary_P = arrays.particle_columns["pulses"][:, 0], arrays.particle_columns["auxiliary"][:, 0]
    kept_P = np.ones(len(time_P), np.bool_)
    for event in large.tolist():
        own = slice(int(arrays.offsets[event]), int(arrays.offsets[event + 1]))
        ranked = np.lexsort((time_P[own], auxiliary_P[own]))
        kept_P[own.start + ranked[most:]] = False
    cut = replace(
        arrays,
        offsets=np.concatenate([[0], np.cumsum(np.minimum(counts_E, most))]),
        particle_columns={name: column[kept_P] for name, column in arrays.particle_columns.items()},
    )
    group_by_sensor(cut)  # a sensor may have lost its first pulse
    return cut, len(large)


def microbatch_of(arrays: UnitArrays, device: torch.device) -> Microbatch:
    """All events of a unit, on the device."""
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=torch.from_numpy(arrays.offsets).to(device),
        host_offsets_E1=arrays.offsets,
        event_columns={name: torch.from_numpy(column).to(device) for name, column in arrays.event_columns.items()},
        particle_columns={
            name: torch.from_numpy(column).to(device) for name, column in arrays.particle_columns.items()
        },
        num_events=len(arrays.offsets) - 1,
        num_particles=int(arrays.offsets[-1]),
    )
