"""Training of a model as the trainer process sees it, and settings that every model's step needs. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pydantic import Field

from common.config import ConfigBranch
from common.errors import BadInputError
from common.own_code import import_own

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from workloads.base.batch import Batch
    from workloads.base.context import StepContext

COSINE_END = 0.05
"""Factor at the end of a cosine: small enough to settle, and a run that goes on still learns."""
CYCLE_BEGIN, CYCLE_TOP, CYCLE_END, NO_CYCLE = 0.04, 0.05, 0.001, 0.25
"""One cycle: factor at the start, part of the steps at which the factor is 1, factor at the end; factor of all steps
if schedule_steps is 0: the highest rate is far too fast to stay."""


class StepConfig(Protocol):
    """The settings of a model that a step asks for: each a setting, or a constant of the class."""

    @property
    def schedule(self) -> str:
        """`constant`, `cosine` or `one_cycle`."""

    @property
    def schedule_steps(self) -> int:
        """Steps of the cosine or cycle; 0: learning rates stay constant."""

    @property
    def warmup_steps(self) -> int:
        """Steps over which learning rates rise from 0."""

    @property
    def gradient_clip(self) -> float:
        """Largest norm of a network's gradient; larger ones are scaled down to it; 0: no limit."""

    @property
    def chunk_particles(self) -> int:
        """Largest number of particles in a part of a batch; 0: by the device and its memory."""


class StepSettings(ConfigBranch):
    """Settings that the section of every shipped model has."""

    schedule_steps: int = Field(0, ge=0)
    """Optimiser steps over which the learning rates fall, usually those of the run. 0: they stay constant."""

    chunk_particles: int = Field(0, ge=0)
    """Particles in one pass through the networks: a batch is processed in chunks of whole events, which gives the same
    gradients with better use of the cache. Set it to repeat a run of another machine. 0: by the cache of a CPU's core
    (8,192 for `wgan` with 1 MiB, 4,096 for `likelihood`; 16,384 for directions), by the memory of a GPU."""

    def warnings(self) -> list[str]:
        """Return a line for each setting that is allowed but was measured, or is known, to train badly."""
        return []


def learning_rate_factor(step: int, config: StepConfig) -> float:
    """Return the factor on the configured learning rates in ``step``: a linear warm-up, then 1, a cosine or one cycle.

    It is a function of the step alone, without state to save. The cosine falls to 5 %; one cycle (arXiv:1708.07120)
    rises fast and falls to next to nothing, both along a cosine.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or config.schedule_steps == 0:
        return NO_CYCLE if config.schedule == "one_cycle" else 1.0
    progress = min((step - config.warmup_steps) / max(config.schedule_steps - config.warmup_steps, 1), 1.0)
    if config.schedule == "cosine":
        return _between(1.0, COSINE_END, progress)
    if progress < CYCLE_TOP:
        return _between(CYCLE_BEGIN, 1.0, progress / CYCLE_TOP)
    return _between(1.0, CYCLE_END, (progress - CYCLE_TOP) / (1 - CYCLE_TOP))


def _between(first: float, last: float, progress: float) -> float:
    """Half a cosine from ``first`` at progress 0 to ``last`` at 1."""
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Histogram:
    """Counts of values between neighbouring edges."""

    edges: npt.NDArray[np.float64]
    """(B + 1,), ascending."""
    counts: npt.NDArray[np.int64]
    """(B,)."""


Image: TypeAlias = "npt.NDArray[np.uint8]"
"""(height, width, 3)."""


@dataclass(frozen=True)
class Evaluation:
    """Results on the validation block, by the names under which they are written."""

    scalars: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)


class Evaluator(Protocol):
    """Evaluation of a model in training. Neither call changes the model or any random numbers that training draws."""

    def settings(self) -> dict[str, float]:
        """Settings that change during training, such as learning rates. No host sync."""

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Results on ``block``, which is the same each time; None while there is nothing to evaluate yet."""


@dataclass(frozen=True)
class Alarm:
    """Limits of a metric. Beyond them for ``steps`` consecutive steps, the step is a warning of its health."""

    below: float = -math.inf
    above: float = math.inf
    steps: int = 1
    meaning: str = ""
    """Cause and remedy, for the message."""
    zero_is_nothing: bool = False
    """True if 0 means that the metric was not computed."""

    def is_beyond(self, value: float) -> bool:
        """True for a finite value beyond the limits."""
        if not math.isfinite(value) or (self.zero_is_nothing and value == 0):
            return False
        return value < self.below or value > self.above

    def message(self, name: str, value: float) -> str:
        """Text of the warning."""
        side, limit = ("below", self.below) if value < self.below else ("above", self.above)
        since = f" for {self.steps} steps" if self.steps > 1 else ""
        text = f"{name} is {value:.4g}, {side} {limit:g}{since}, the model's limit"
        return f"{text}: {self.meaning}" if self.meaning else text


class Task(Protocol):
    """One model in training."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Do one optimiser step. Returns 0-dim metrics on the device."""

    def state_dict(self) -> dict[str, Any]:
        """State from which training resumes."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from state_dict(). Parts that don't fit any more (another optimiser, say) are skipped and logged.

        Raises KeyError, RuntimeError or ValueError if the networks differ.
        """

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load only the learned weights of another run's state_dict(). Raises the same errors as load_state_dict."""

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all further learning rates by ``factor``, which state_dict() holds."""


class Training(Protocol):
    """Training of one model. A lazy function of the workload's table of models returns it.

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


@dataclass(frozen=True)
class ModelTraining:
    """The training of a model of a workload; see Training."""

    headline: str
    shown: tuple[str, ...]
    alarms: Mapping[str, float | Alarm]
    task: Callable[..., Any]
    evaluator: Callable[..., Any]
    meaning_of_weights: tuple[str, ...] = ()

    def warnings(self, config: Any) -> Sequence[str]:
        """Return warnings about settings that train badly."""
        return config.warnings() if isinstance(config, StepSettings) else ()


_PARTS = ("headline", "shown", "meaning_of_weights", "alarms", "task", "evaluator", "warnings")


def own_training(name: str) -> Training:
    """Import a training of the user's own: `trainer.model = "package.module:TRAINING"`. Raises BadInputError."""
    training: Training = import_own(name)
    if missing := [part for part in _PARTS if not hasattr(training, part)]:
        raise BadInputError(
            f"{name} is no training: it lacks {', '.join(missing)}; use icestream.ModuleTraining, or see"
            " workloads/base/training.py"
        )
    return training
