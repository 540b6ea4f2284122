"""Learning-rate schedule: a function of the step alone, without state to save."""

from __future__ import annotations

import math
from typing import Protocol

COSINE_END = 0.05
CYCLE_BEGIN, CYCLE_TOP, CYCLE_END = 0.04, 0.05, 0.001
"""One cycle: factor at the start, part of the steps at which the factor is 1, factor at the end."""


class Course(Protocol):
    """Settings of the schedule, common to all models."""

    @property
    def schedule(self) -> str:
        """`constant`, `cosine` or `one_cycle`."""

    @property
    def schedule_steps(self) -> int:
        """Steps of the cosine or cycle."""

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up."""


def learning_rate_factor(step: int, config: Course) -> float:
    """Factor on the configured learning rates in ``step``: a linear warm-up, then 1, a cosine to 5 % or one cycle.

    One cycle (arXiv:1708.07120) rises fast and falls to next to nothing, both along a cosine.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or config.schedule_steps == 0:
        return 1.0
    progress = min((step - config.warmup_steps) / max(config.schedule_steps - config.warmup_steps, 1), 1.0)
    if config.schedule == "cosine":
        return _between(1.0, COSINE_END, progress)
    if progress < CYCLE_TOP:
        return _between(CYCLE_BEGIN, 1.0, progress / CYCLE_TOP)
    return _between(1.0, CYCLE_END, (progress - CYCLE_TOP) / (1 - CYCLE_TOP))


def _between(first: float, last: float, progress: float) -> float:
    """Half a cosine from ``first`` at progress 0 to ``last`` at 1."""
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2
