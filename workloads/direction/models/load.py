"""Loading of a trained direction model from a checkpoint, with the detector it was trained for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.base.batch import Microbatch
from workloads.base.context import StepContext
from workloads.base.trained_run import TrainedRun, load_run
from workloads.direction.models.detector import Detector
from workloads.direction.models.network import DirectionNetwork
from workloads.direction.models.predictor import Predictor
from workloads.direction.models.sets.model import SetsNetwork
from workloads.direction.models.transformer.model import TransformerNetwork
from workloads.direction.workload import WORKLOAD

NETWORKS: dict[str, Callable[[Any], DirectionNetwork]] = {"sets": SetsNetwork, "transformer": TransformerNetwork}
"""Model -> network of its section of the configuration."""


@dataclass(frozen=True)
class TrainedPredictor:
    """Predictor of a trained model, and its source."""

    predictor: Predictor
    run: TrainedRun
    position_S3: Tensor
    """(S, 3): the sensors of the detector it was trained for, m."""

    def predict(self, microbatch: Microbatch) -> Tensor:
        """See Predictor.predict."""
        return self.predictor.predict(microbatch)


def load_predictor(place: Path, device: torch.device) -> TrainedPredictor:
    """Trained model from a checkpoint, or from a run directory: its best checkpoint, else its newest.

    Raises BadInputError that names the file.
    """
    return load_run(place, partial(build_predictor, device=device))


def build_predictor(run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedPredictor:
    """Trained model of a run, from its task's state; for load_run."""
    run.require_workload(WORKLOAD.name)
    if run.model not in NETWORKS:
        raise ValueError(f"{run.model!r} is no model of directions: {', '.join(NETWORKS)}")
    config: Any = WORKLOAD.models[run.model].config.model_validate(run.section)
    states = task_state["networks"]
    detector = Detector.from_state(states["detector"]).to(device)
    network = NETWORKS[run.model](config)
    network.load_state_dict(states["network_average" if config.average_decay > 0 else "network"])
    context = StepContext(device, seed=0)  # float32, on any device
    predictor = Predictor(
        network.to(device).requires_grad_(False).eval(), detector, context.precision, config.chunk_particles
    )
    return TrainedPredictor(predictor, run, detector.position_S3)
