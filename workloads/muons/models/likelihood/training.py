"""Training of the likelihood model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from workloads.base.context import StepContext
from workloads.base.training import Training
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.likelihood.panel import LikelihoodPanel
from workloads.muons.models.likelihood.task import LikelihoodTask


class LikelihoodTraining:
    """See Training."""

    headline = "muon_nll"
    shown = ("muon_nll", "kl", "m_loss")
    meaning_of_weights = ("network.radius_offset_m", "network.energy_cut_gev")
    alarms: Mapping[str, float] = MappingProxyType({"below_cut": 0.0})

    def task(self, config: LikelihoodConfig, context: StepContext) -> LikelihoodTask:
        """Task with networks, optimisers and training step."""
        return LikelihoodTask(config, context)

    def evaluator(self, task: LikelihoodTask, seed: int) -> LikelihoodPanel:
        """The physics panel, scored by the held-out likelihood."""
        return LikelihoodPanel(task, seed)

    def warnings(self, config: LikelihoodConfig) -> Sequence[str]:
        """Settings that train badly."""
        return config.warnings()


TRAINING: Training = LikelihoodTraining()
