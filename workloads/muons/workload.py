"""Muon workload: bundles of muons for given primaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workloads.base.interface import Model, Workload
from workloads.muons.columns import MUONS
from workloads.muons.models.config import LikelihoodConfig, WganConfig

if TYPE_CHECKING:
    from workloads.base.training import Training


def _wgan() -> Training:
    from workloads.muons.models.wgan import TRAINING

    return TRAINING


def _likelihood() -> Training:
    from workloads.muons.models.likelihood import TRAINING

    return TRAINING


def _simulate() -> Callable[..., Any]:
    from workloads.muons.simulator.write import simulate_dataset

    return simulate_dataset


def _load() -> Callable[..., Any]:
    from workloads.muons.generation import load

    return load


def _evaluate() -> Callable[..., Any]:
    from workloads.muons.evaluation import EVALUATION

    return EVALUATION.report


WORKLOAD = Workload(
    name="muons",
    schema=MUONS,
    models={
        "wgan": Model("adversarial", WganConfig, _wgan),
        "likelihood": Model("likelihood", LikelihoodConfig, _likelihood),
    },
    functions={"simulate": _simulate, "load": _load, "evaluate": _evaluate},
)
