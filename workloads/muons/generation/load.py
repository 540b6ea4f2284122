"""Loading of a trained model of any kind from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workloads.base.trained_run import TrainedRun, load_run
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.models.likelihood.sampler import LikelihoodSampler
from workloads.muons.models.wgan.sampler import WganSampler
from workloads.muons.workload import WORKLOAD

SAMPLERS: dict[str, Callable[[Any, dict[str, Any], torch.device], MuonGenerator]] = {
    "wgan": WganSampler.from_state,
    "likelihood": LikelihoodSampler.from_state,
}


@dataclass(frozen=True)
class Trained:
    """Generator and its source."""

    generator: MuonGenerator
    run: TrainedRun
    max_count: int
    """Largest number of muons in an event, from the settings of the run."""


def most_muons(config: Any) -> int:
    """Largest number of muons in an event, from the settings of a model of either kind."""
    return int(getattr(config, "sampling", config).max_count)


def load_trained(checkpoint: Path, device: torch.device) -> Trained:
    """Trained model from a checkpoint, or from a run directory: its best checkpoint, else its newest.

    Raises BadInputError that names the file.
    """
    return load_run(checkpoint, partial(build_trained, device=device))


def build_trained(run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> Trained:
    """Trained model of a run, from its task's state; for load_run."""
    run.require_workload(WORKLOAD.name)
    if run.model not in SAMPLERS:
        raise ValueError(
            f"{run.model!r} is no model of this version's muons ({', '.join(SAMPLERS)}): use the version that wrote"
            " it, or train one of these"
        )
    config: Any = WORKLOAD.models[run.model].config.model_validate(run.section)
    return Trained(SAMPLERS[run.model](config, task_state, device), run, most_muons(config))
