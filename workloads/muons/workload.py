"""Muon workload: bundles of muons for given primaries."""

from __future__ import annotations

from workloads.base.interface import Model, Workload
from workloads.muons.columns import MUONS
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.wgan.config import WganConfig

WORKLOAD = Workload(
    name="muons",
    schema=MUONS,
    models={
        "wgan": Model("adversarial", WganConfig, "workloads.muons.models.wgan.training:TRAINING"),
        "likelihood": Model("likelihood", LikelihoodConfig, "workloads.muons.models.likelihood.training:TRAINING"),
    },
    functions={
        "simulate": "workloads.muons.simulator.dataset:simulate_dataset",
        "load": "workloads.muons.trained_muons:load",
        "evaluate": "workloads.muons.evaluation.evaluate:report",
    },
    sample="workloads.muons.simulator.write:write_sample",
)
