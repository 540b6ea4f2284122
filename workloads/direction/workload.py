"""Direction workload: where a neutrino came from."""

from __future__ import annotations

from workloads.base.interface import Model, Workload
from workloads.direction.columns import DIRECTION
from workloads.direction.models.sets.config import SetsConfig
from workloads.direction.models.transformer.config import TransformerConfig

_MODELS = "workloads.direction.models"

WORKLOAD = Workload(
    name="direction",
    schema=DIRECTION,
    models={
        "sets": Model("classical fits and two set networks", SetsConfig, f"{_MODELS}.sets.training:TRAINING"),
        "transformer": Model(
            "attention between sensors", TransformerConfig, f"{_MODELS}.transformer.training:TRAINING"
        ),
    },
    functions={
        "simulate": "workloads.direction.simulator.dataset:simulate_dataset",
        "load": "workloads.direction.trained_directions:load",
        "evaluate": "workloads.direction.evaluation.evaluate:report",
    },
    sample="workloads.direction.simulator.write:write_sample",
    importers={
        "kaggle": "workloads.direction.importers.kaggle:KAGGLE",
        "graphnet": "workloads.direction.importers.graphnet:GRAPHNET",
    },
)
