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


def run_of(path: Path, config_json: str = "{}", inputs: tuple[str, ...] = ()) -> TrainedRun:
    """Run whose checkpoint is ``path``."""
    return TrainedRun(path, 7, 700, "sets", {}, inputs, SourceConfig(), config_json)


@dataclass
class TruthTeller:
    """Predictor that knows the truth, and what it was shown."""

    run: TrainedRun
    kappa: Callable[[Microbatch], Tensor] = lambda events: torch.full((events.num_events, 1), 100.0)
    shown: list[Microbatch] = field(default_factory=list)

    def predict(self, microbatch: Microbatch) -> Tensor:
        """True directions with κ of the function."""
        self.shown.append(microbatch)
        return microbatch.event_columns["source_direction"] * self.kappa(microbatch)
