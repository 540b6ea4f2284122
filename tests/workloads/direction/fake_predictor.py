"""Predictors and predicted events for tests that need no training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from common.config import SourceConfig
from services.config.root import Config
from services.trainer.position import StreamPosition
from workloads.base.batch import Microbatch
from workloads.base.checkpoint import FORMAT, TrainedRun
from workloads.base.context import StepContext
from workloads.direction.geometry import GEOMETRY_FILE, icecube_geometry
from workloads.direction.grouping import unit_vectors
from workloads.direction.metrics import PredictedEvents, drawn_angles_rad, unit_and_norm
from workloads.direction.models.config import CONFIGS
from workloads.direction.models.network import Detector, Prediction
from workloads.direction.models.task import DirectionTask
from workloads.registry import section_name

CONTEXT = StepContext(torch.device("cpu"), seed=1)


def run_of(path: Path, config_json: str = "{}") -> TrainedRun:
    """Run whose checkpoint is ``path``."""
    return TrainedRun(path, 7, 700, "sets", {}, (), SourceConfig(), 0.0, config_json)


def task_of(folder: Path, context: StepContext = CONTEXT, model: str = "sets", **settings: Any) -> DirectionTask:
    """Task for the detector whose table lies in the folder."""
    given = {"geometry": str(folder / GEOMETRY_FILE), **settings}
    return DirectionTask(model, CONFIGS[model].model_validate(given), context)


def write_checkpoint(path: Path, task: DirectionTask) -> Path:
    """As a run would leave it."""
    trainer = {"model": task.model, section_name(task.model): task.config.model_dump()}
    config = Config.model_validate({"input": ["data"], "workload": "direction", "trainer": trainer})
    state = {"config": config.model_dump_json(), "position": StreamPosition().model_dump_json()}
    torch.save({"format": FORMAT, "task": task.state_dict(), "step": 3, **state}, path)
    return path


@dataclass
class TruthTeller:
    """Predictor that knows the truth, from the events or by their ids, and what it was shown."""

    run: TrainedRun
    kappa: Callable[[Microbatch], Tensor] = lambda events: torch.full((events.num_events, 1), 100.0)
    shown: list[Microbatch] = field(default_factory=list)
    detector: Detector = field(default_factory=lambda: Detector(icecube_geometry()))

    truth: tuple[Path, ...] = ()
    """Files of the true directions of events that are shown without them."""
    has_energy: bool = False
    """With lg E = 3 ± 0.5 for every event."""

    def predict(self, microbatch: Microbatch) -> Prediction:
        """True directions with κ of the function."""
        self.shown.append(microbatch)
        true_E3 = microbatch.event_columns.get("source_direction")
        if true_E3 is None:
            true_E3 = torch.tensor(np.array([self._known[int(id)] for id in microbatch.event_columns["event_id"]]))
        energy_E2 = torch.tensor([[3.0, math.log(0.5)]]).expand(microbatch.num_events, 2) if self.has_energy else None
        return Prediction(true_E3 * self.kappa(microbatch), energy_E2=energy_E2)

    @cached_property
    def _known(self) -> dict[int, npt.NDArray[np.float64]]:
        table = pa.concat_tables(
            [pq.read_table(file, columns=["event_id", "azimuth", "zenith"]) for file in self.truth]
        )
        arrival_E2 = np.stack([table["azimuth"], table["zenith"]], 1)
        return dict(zip(table["event_id"].to_pylist(), unit_vectors(arrival_E2), strict=True))


class NearTruth(TruthTeller):
    """Predictor that errs by about a degree."""

    def predict(self, microbatch: Microbatch) -> Prediction:
        true_E3 = microbatch.event_columns["source_direction"].double().numpy()
        random = np.random.default_rng(len(true_E3))
        angle_E = np.radians(random.rayleigh(1.0, len(true_E3)))
        p_E3 = rotated(true_E3, angle_E, random) * random.uniform(2000, 4000, (len(true_E3), 1))
        return Prediction(torch.from_numpy(p_E3), energy_E2=super().predict(microbatch).energy_E2)


def rotated(unit_E3: np.ndarray, angle_E: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Unit vectors at given angles from others, to a random side."""
    side_E3 = np.cross(unit_E3, random.normal(size=unit_E3.shape))
    side_E3 /= np.linalg.norm(side_E3, axis=1)[:, None]
    return np.cos(angle_E)[:, None] * unit_E3 + np.sin(angle_E)[:, None] * side_E3


def events_at(
    angle_deg: np.ndarray | list[float],
    kappa: np.ndarray | list[float],
    topology: np.ndarray | list[int],
    baselines: Mapping[str, np.ndarray] | None = None,
) -> PredictedEvents:
    """Events whose predictions are so far from the truth, which lies anywhere. lg E errs by 0.25, as told."""
    random = np.random.default_rng(5)
    angle_E = np.radians(np.asarray(angle_deg, np.float64))
    true_E3 = unit_and_norm(random.normal(size=(len(angle_E), 3)))[0]
    return PredictedEvents(
        rotated(true_E3, angle_E, random),
        np.asarray(kappa, np.float64),
        true_E3,
        np.asarray(topology, np.int8),
        energy_gev_E := random.uniform(100, 1e5, len(angle_E)),
        random.integers(3, 60, len(angle_E)),
        np.stack([random.normal(np.log10(energy_gev_E), 0.25), np.full(len(angle_E), 0.25)], 1),
        {name: rotated(true_E3, np.radians(far), random) for name, far in (baselines or {}).items()},
    )


def calibrated_events(number: int, seed: int = 0, too_sure: float = 1.0) -> PredictedEvents:
    """Tracks (large κ) and cascades (small κ) whose angles follow their κ; above 1: κ is told too large by that."""
    random = np.random.default_rng(seed)
    topology_E = (random.random(number) < 0.6).astype(np.int8)
    kappa_E = np.where(topology_E == 1, 800.0, 3.0) * random.lognormal(0, 0.5, number)
    angle_E = np.degrees(drawn_angles_rad(kappa_E, random))
    return events_at(angle_E, kappa_E * too_sure, topology_E, {"line": np.minimum(3 * angle_E + 1, 170.0)})
