"""Predictors for tests that need no training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from torch import Tensor

from common.config import SourceConfig
from workloads.base.batch import Microbatch
from workloads.base.trained_run import TrainedRun
from workloads.direction.geometry import icecube_geometry
from workloads.direction.grouping import unit_vectors


def run_of(path: Path, config_json: str = "{}", inputs: tuple[str, ...] = (), held_out: float = 0.0) -> TrainedRun:
    """Run whose checkpoint is ``path``."""
    return TrainedRun(path, 7, 700, "sets", {}, inputs, SourceConfig(), held_out, config_json)


@dataclass
class TruthTeller:
    """Predictor that knows the truth, from the events or by their ids, and what it was shown."""

    run: TrainedRun
    kappa: Callable[[Microbatch], Tensor] = lambda events: torch.full((events.num_events, 1), 100.0)
    shown: list[Microbatch] = field(default_factory=list)
    position_S3: Tensor = field(default_factory=lambda: torch.from_numpy(icecube_geometry().position_S3))

    truth: tuple[Path, ...] = ()
    """Files of the true directions of events that are shown without them."""

    def predict(self, microbatch: Microbatch) -> Tensor:
        """True directions with κ of the function."""
        self.shown.append(microbatch)
        true_E3 = microbatch.event_columns.get("source_direction")
        if true_E3 is None:
            true_E3 = torch.tensor(np.array([self._known[int(id)] for id in microbatch.event_columns["event_id"]]))
        return true_E3 * self.kappa(microbatch)

    @cached_property
    def _known(self) -> dict[int, npt.NDArray[np.float64]]:
        tables = [pq.read_table(file, columns=["event_id", "azimuth", "zenith"]) for file in self.truth]
        return {
            id: unit_vectors(np.array([[azimuth, zenith]]))[0]
            for table in tables
            for id, azimuth, zenith in zip(*table.to_pydict().values(), strict=True)
        }
