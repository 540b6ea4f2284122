"""Trained model, as Python gets it from `icestream.load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import BadInputError
from workloads.base.front import Front
from workloads.base.trained_run import TrainedRun


class NoSuchUseError(BadInputError, AttributeError):
    """Use of a trained model that models of its workload don't have."""


class TrainedModel:
    """Trained model of a run. What can be done with it depends on its workload: see `uses`."""

    uses: tuple[str, ...] = ()
    """Names of the methods that the workload adds."""

    def __init__(self, front: Front, run: TrainedRun) -> None:
        self._front = front
        self.run = run
        """Settings of the run that the model depends on."""

    @property
    def checkpoint(self) -> Path:
        """Checkpoint file that was loaded."""
        return self.run.path

    @property
    def step(self) -> int:
        """Optimiser steps that the model was trained."""
        return self.run.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by Python and notebooks themselves
            raise AttributeError(name)
        raise NoSuchUseError(
            f"{self.run.path}: a {self.run.model!r} of the workload {self.run.workload} has no {name!r}; it has"
            f" {', '.join(self.uses) or 'nothing of the kind'}"
        )

    def __repr__(self) -> str:
        return f"<{self.run.model} of {self.run.path}, step {self.run.step:,}: {', '.join(self.uses)}>"
