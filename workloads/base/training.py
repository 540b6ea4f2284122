"""Interface of one model's training to the trainer process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workloads.base.context import StepContext
from workloads.base.evaluator import Evaluator
from workloads.base.limits import Alarm
from workloads.base.task import Task


class Training(Protocol):
    """Training of one model. The model's module `training` holds it as TRAINING.

    Arguments `config` and `task` are the section `trainer.MODEL` of the configuration and a task that this object made.
    """

    @property
    def headline(self) -> str:
        """Name of the step metric that is averaged over the last steps, shown and stored."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Names of the step metrics in the status file and the progress view."""

    @property
    def meaning_of_weights(self) -> tuple[str, ...]:
        """Settings of `trainer.MODEL` that change the meaning of weights of the same shapes."""

    @property
    def alarms(self) -> Mapping[str, float | Alarm]:
        """Limits of step metrics, by name; a number: a step with a higher value is a warning of its health."""

    def task(self, config: Any, context: StepContext) -> Task:
        """Task with newly initialised weights."""

    def evaluator(self, task: Any, seed: int) -> Evaluator:
        """Evaluation of the task on the validation block."""

    def warnings(self, config: Any) -> Sequence[str]:
        """Warnings about settings that are allowed but known to train badly, a line each."""
