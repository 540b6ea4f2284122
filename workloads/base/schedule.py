"""The course of the learning rates: a function of the step alone, so that it has no state of its own to save."""

from __future__ import annotations

import math
from typing import Protocol

COSINE_END = 0.05


class Course(Protocol):
    """What the configurations of all models have."""

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
    """Share of the configured learning rates that is used in ``step``: a linear warm-up, then 1 or a cosine to 5 %."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or config.schedule_steps == 0:
        return 1.0
    progress = min((step - config.warmup_steps) / max(config.schedule_steps - config.warmup_steps, 1), 1.0)
    return COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * progress)) / 2
