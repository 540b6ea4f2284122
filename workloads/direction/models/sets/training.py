"""Training of the model of sets."""

from __future__ import annotations

from workloads.base.context import StepContext
from workloads.base.training import Training
from workloads.direction.models.sets.config import SetsConfig
from workloads.direction.models.sets.task import SetsTask
from workloads.direction.models.training import DirectionTraining


class SetsTraining(DirectionTraining):
    """See Training."""

    meaning_of_weights = ("network.max_sensors",)

    def task(self, config: SetsConfig, context: StepContext) -> SetsTask:
        """Task with network, optimiser and training step."""
        return SetsTask(config, context)


TRAINING: Training = SetsTraining()
