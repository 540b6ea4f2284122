"""Training of the transformer."""

from __future__ import annotations

from workloads.base.context import StepContext
from workloads.base.training import Training
from workloads.direction.models.training import DirectionTraining
from workloads.direction.models.transformer.config import TransformerConfig
from workloads.direction.models.transformer.task import TransformerTask


class TransformerTraining(DirectionTraining):
    """See Training."""

    meaning_of_weights = ("network.max_sensors", "network.heads")

    def task(self, config: TransformerConfig, context: StepContext) -> TransformerTask:
        """Task with network, optimiser and training step."""
        return TransformerTask(config, context)


TRAINING: Training = TransformerTraining()
