"""Trained direction model in Python: `icestream.load(run).predict(files)`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from common.python_paths import Paths, given_inputs
from common.slow_progress import no_progress
from workloads.base.front import Front
from workloads.base.trained_model import TrainedModel
from workloads.base.trained_run import TrainedRun
from workloads.direction.models.load import TrainedPredictor, build_predictor
from workloads.direction.prediction.predict import PredictionCounts, predicted_tables
from workloads.direction.prediction.vectors import PulseLimits
from workloads.direction.prediction.write import TABLE_SCHEMA


class TrainedDirections(TrainedModel):
    """Trained model of neutrino directions."""

    uses = ("predict",)

    def __init__(self, front: Front, predictor: TrainedPredictor, device: torch.device) -> None:
        super().__init__(front, predictor.run)
        self._predictor = predictor
        self._device = device

    def predict(self, files: Paths) -> pa.Table:
        """Directions of all events of the files, in their order: event_id, azimuth, zenith (radians, to the source) and
        the precision kappa, as `icestream predict` writes them.

        ``files``: files, folders, globs or URLs. An event without a predicted direction has kappa 0. Raises
        BadInputError.
        """
        settings = self._front.file_settings(
            given_inputs(files, "files"), toml=None, assignments=(), config_json=self.run.config_json
        )
        limits = PulseLimits.of(settings.stream)
        tables = predicted_tables(self._front, self._predictor, settings, limits, self._device, PredictionCounts())
        with no_progress():
            return pa.concat_tables([TABLE_SCHEMA.empty_table(), *tables])


def load(front: Front, run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedDirections:
    """Trained model of a run; see Workload.functions."""
    return TrainedDirections(front, build_predictor(run, task_state, device), device)
