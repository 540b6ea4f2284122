"""Training common to the direction models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workloads.direction.models.panel import DirectionPanel, PredictingTask


class DirectionTraining:
    """See Training; a model adds its task."""

    headline = "angle_deg"
    shown = ("angle_deg", "vmf_loss", "auxiliary_loss", "mean_direction")
    meaning_of_weights: tuple[str, ...] = ()
    alarms = {"mean_direction": 0.3}  # noqa: RUF012  by then most events have one direction

    def evaluator(self, task: PredictingTask, seed: int) -> DirectionPanel:
        """The direction panel; it draws no random numbers."""
        return DirectionPanel(task)

    def warnings(self, config: Any) -> Sequence[str]:
        """Empty: no setting is known to train badly."""
        return ()
