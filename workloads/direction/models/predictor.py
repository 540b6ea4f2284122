"""Prediction of directions with a trained network. Shape suffix: E events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from workloads.base.batch import Microbatch
from workloads.base.parts import chunks
from workloads.direction.models.detector import Detector
from workloads.direction.models.events import EventInput
from workloads.direction.models.network import DirectionNetwork


class Predictor:
    """Network and detector, without any state of a training."""

    def __init__(
        self,
        network: DirectionNetwork,
        detector: Detector,
        precision: Callable[[], AbstractContextManager[object]],
        chunk_particles: int = 0,
    ) -> None:
        """``chunk_particles``: pulses in one pass; 0: depends on the device."""
        self._network = network
        self._detector = detector
        self._precision = precision
        self._chunk_particles = chunk_particles

    @torch.no_grad()
    def predict(self, microbatch: Microbatch) -> Tensor:
        """Vectors p of the events: direction p / |p|, concentration |p|. -> (E, 3) float32.

        Classical fits that the network needs and the events lack are computed. Raises BadInputError for a pulse of a
        sensor that has no position.
        """
        position_S3 = self._detector.position_S3
        if microbatch.num_events == 0:
            return position_S3.new_zeros(0, 3)
        parts = chunks(microbatch, self._chunk_particles, position_S3.device)
        return torch.cat([self._of(EventInput.from_microbatch(part, position_S3)) for part in parts])

    def _of(self, events: EventInput) -> Tensor:
        with self._precision():
            p_E3: Tensor = self._network(events).p_E3
        return p_E3.float()
