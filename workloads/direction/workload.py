"""Direction workload: where a neutrino came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workloads.base.interface import Importer, Model, Workload
from workloads.direction.columns import DIRECTION
from workloads.direction.models.config import CONFIGS

if TYPE_CHECKING:
    from workloads.base.training import Training


def _sets() -> Training:
    from workloads.direction.models.task import SETS

    return SETS


def _transformer() -> Training:
    from workloads.direction.models.task import TRANSFORMER

    return TRANSFORMER


def _simulate() -> Callable[..., Any]:
    from workloads.direction.simulator import simulate_dataset

    return simulate_dataset


def _load() -> Callable[..., Any]:
    from workloads.direction.prediction import load

    return load


def _evaluate() -> Callable[..., Any]:
    from workloads.direction.evaluation import EVALUATION

    return EVALUATION.report


def _kaggle() -> Importer:
    from workloads.direction.importers import KAGGLE

    return KAGGLE


def _graphnet() -> Importer:
    from workloads.direction.importers import GRAPHNET

    return GRAPHNET


WORKLOAD = Workload(
    name="direction",
    schema=DIRECTION,
    models={
        "sets": Model("classical fits and two set networks", CONFIGS["sets"], _sets),
        "transformer": Model("attention between sensors", CONFIGS["transformer"], _transformer),
    },
    functions={"simulate": _simulate, "load": _load, "evaluate": _evaluate},
    importers={"kaggle": _kaggle, "graphnet": _graphnet},
)
