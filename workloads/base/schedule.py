"""Learning-rate schedule: a function of the step alone, without state to save."""

from __future__ import annotations

import math
from typing import Protocol

COSINE_END = 0.05


class Course(Protocol):
    """Settings of the schedule, common to all models."""

    @property
    def schedule(self) -> str:
        """`constant` or `cosine`."""

    @property
    def schedule_steps(self) -> int:
        """Steps of the cosine."""

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up."""


def learning_rate_factor(step: int, config: Course) -> float:
    """Factor on the configured learning rates in ``step``: a linear warm-up, then 1 or a cosine to 5 %."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or config.schedule_steps == 0:
        return 1.0
    progress = min((step - config.warmup_steps) / max(config.schedule_steps - config.warmup_steps, 1), 1.0)
    return COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * progress)) / 2
