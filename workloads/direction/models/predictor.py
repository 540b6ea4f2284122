"""Prediction of directions with a trained network. Shape suffix: E events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from workloads.base.batch import Microbatch
from workloads.base.parts import most_particles
from workloads.direction.fits.classical import classical_fits
from workloads.direction.geometry import Geometry
from workloads.direction.models.detector import Detector
from workloads.direction.models.events import EventInput
from workloads.direction.models.network import DirectionNetwork

CPU_CHUNK_PULSES = 1 << 14
"""Pulses in one pass on a CPU, if not configured: about 250 events of a usual detector."""


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
        self.network = network
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
        most = most_particles(self._chunk_particles, position_S3.device, CPU_CHUNK_PULSES)
        return torch.cat([self._of(part) for part in microbatch.chunks(most)])

    def _of(self, part: Microbatch) -> Tensor:
        if self.network.needs_fits:
            part = self._with_fits(part)
        # No network sees the target, and files to be predicted may have none.
        unknown = {"source_direction": self._detector.position_S3.new_zeros(part.num_events, 3)}
        part = replace(part, event_columns=unknown | part.event_columns)
        events = EventInput.from_microbatch(part, self._detector.position_S3)
        with self._precision():
            p_E3: Tensor = self.network(events).p_E3
        return p_E3.float()

    def _with_fits(self, part: Microbatch) -> Microbatch:
        """Events with their classical fits, which are computed on the host where there are none."""
        stored_EF = part.event_columns["classical_fits"]
        absent_E1 = (stored_EF == 0).all(1, keepdim=True)
        if not absent_E1.any():
            return part
        columns = part.particle_columns
        sensor_P, auxiliary_P = (columns[name][:, 0].cpu().numpy() for name in ("sensor", "auxiliary"))
        time_P, charge_P = columns["pulses"].cpu().numpy().T
        geometry = Geometry(self._detector.position_S3.cpu().numpy())
        fits_EF = classical_fits(
            sensor_P, time_P, charge_P, auxiliary_P, part.host_offsets_E1.astype(np.int64), geometry
        )
        computed_EF = torch.from_numpy(fits_EF).to(stored_EF.device)
        fits = {"classical_fits": torch.where(absent_E1, computed_EF, stored_EF)}
        return replace(part, event_columns=part.event_columns | fits)
