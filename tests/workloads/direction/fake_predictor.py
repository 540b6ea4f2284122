"""Predictors for tests that need no training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from common.config import SourceConfig
from workloads.base.batch import Microbatch
from workloads.base.trained_run import TrainedRun
from workloads.direction.geometry import icecube_geometry


def run_of(path: Path, config_json: str = "{}", inputs: tuple[str, ...] = (), held_out: float = 0.0) -> TrainedRun:
    """Run whose checkpoint is ``path``."""
    return TrainedRun(path, 7, 700, "sets", {}, inputs, SourceConfig(), held_out, config_json)


@dataclass
class TruthTeller:
    """Predictor that knows the truth, and what it was shown."""

    run: TrainedRun
    kappa: Callable[[Microbatch], Tensor] = lambda events: torch.full((events.num_events, 1), 100.0)
    shown: list[Microbatch] = field(default_factory=list)
    position_S3: Tensor = field(default_factory=lambda: torch.from_numpy(icecube_geometry().position_S3))

    def predict(self, microbatch: Microbatch) -> Tensor:
        """True directions with κ of the function."""
        self.shown.append(microbatch)
        return microbatch.event_columns["source_direction"] * self.kappa(microbatch)
