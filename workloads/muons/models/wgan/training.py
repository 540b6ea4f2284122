"""Training of the WGAN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from workloads.base.context import StepContext
from workloads.base.training import Training
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.panel import WganPanel
from workloads.muons.models.wgan.task import WganTask


class WganTraining:
    """See Training."""

    headline = "w_gap"
    shown = ("c_loss", "g_loss", "m_loss", "w_gap")
    meaning_of_weights = ("network.radius_offset_m", "network.pooling", "network.local_tails")
    alarms: Mapping[str, float] = MappingProxyType({})

    def task(self, config: WganConfig, context: StepContext) -> WganTask:
        """Task with networks, optimisers and training step."""
        return WganTask(config, context)

    def evaluator(self, task: WganTask, seed: int) -> WganPanel:
        """The physics panel."""
        return WganPanel(task, seed)

    def warnings(self, config: WganConfig) -> Sequence[str]:
        """Settings that train badly."""
        return config.warnings()


TRAINING: Training = WganTraining()
