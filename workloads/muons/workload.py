"""Muon workload: bundles of muons for given primaries."""

from __future__ import annotations

from workloads.base.interface import Model, Workload, lazy
from workloads.muons.columns import MUONS
from workloads.muons.models.config import LikelihoodConfig, WganConfig

WORKLOAD = Workload(
    name="muons",
    schema=MUONS,
    models={
        "wgan": Model("adversarial", WganConfig, lazy("workloads.muons.models.wgan", "TRAINING")),
        "likelihood": Model("likelihood", LikelihoodConfig, lazy("workloads.muons.models.likelihood", "TRAINING")),
    },
    functions={
        "simulate": lazy("workloads.muons.simulator.write", "simulate_dataset"),
        "load": lazy("workloads.muons.generation", "load"),
        "evaluate": lazy("workloads.muons.evaluation", "EVALUATION.report"),
    },
)
