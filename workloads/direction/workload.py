"""Direction workload: where a neutrino came from."""

from __future__ import annotations

from workloads.base.interface import Model, Workload, lazy
from workloads.direction.columns import DIRECTION
from workloads.direction.models.config import CONFIGS

_TASK = "workloads.direction.models.task"

WORKLOAD = Workload(
    name="direction",
    schema=DIRECTION,
    models={
        "sets": Model("classical fits and two set networks", CONFIGS["sets"], lazy(_TASK, "SETS")),
        "transformer": Model("attention between sensors", CONFIGS["transformer"], lazy(_TASK, "TRANSFORMER")),
        "flat": Model("the flat transformer of iceaggr", CONFIGS["flat"], lazy(_TASK, "FLAT"), section="transformer"),
    },
    functions={
        "simulate": lazy("workloads.direction.simulator", "simulate_dataset"),
        "load": lazy("workloads.direction.prediction", "load"),
        "evaluate": lazy("workloads.direction.evaluation", "EVALUATION.report"),
    },
    importers={
        "kaggle": lazy("workloads.direction.importers", "KAGGLE"),
        "graphnet": lazy("workloads.direction.importers", "GRAPHNET"),
    },
)
