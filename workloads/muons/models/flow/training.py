"""Training of the flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from workloads.base.context import StepContext
from workloads.base.training import Training
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.task import FlowTask
from workloads.muons.models.panel import MuonPanel


class FlowTraining:
    """See Training."""

    headline = "flow_loss"
    shown = ("flow_loss", "m_loss")
    meaning_of_weights = ("network.radius_offset_m", "network.pooling")
    alarms: Mapping[str, float] = MappingProxyType({})

    def task(self, config: FlowConfig, context: StepContext) -> FlowTask:
        """Task with networks, optimisers and training step."""
        return FlowTask(config, context)

    def evaluator(self, task: FlowTask, seed: int) -> MuonPanel:
        """The physics panel."""
        return MuonPanel(task, seed)

    def warnings(self, config: FlowConfig) -> Sequence[str]:
        """Empty: no setting is known to train badly."""
        return ()


TRAINING: Training = FlowTraining()
