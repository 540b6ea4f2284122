"""The training of one model, as the trainer process sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from workloads.base.context import StepContext
from workloads.base.evaluator import Evaluator
from workloads.base.task import Task


class Training(Protocol):
    """One model's training. A model's module `training` holds it as TRAINING.

    Configurations and tasks are those of the model: a Training is only given what it made itself, or the section
    `trainer.MODEL` of the configuration.
    """

    @property
    def headline(self) -> str:
        """Metric of a step whose mean over the last steps is shown and stored."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of a step in the status file and the progress view."""

    @property
    def meaning_of_weights(self) -> tuple[str, ...]:
        """Settings of `trainer.MODEL` that change what weights of the same shapes mean."""

    def task(self, config: Any, context: StepContext) -> Task:
        """The model with new weights."""

    def evaluator(self, task: Any, seed: int) -> Evaluator:
        """Evaluation of the task on the validation block."""

    def warnings(self, config: Any) -> Sequence[str]:
        """Settings that are allowed, but known to train badly: a line each."""
