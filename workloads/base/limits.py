"""Limits of a single update, and of a step's metrics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateLimits:
    """Largest loss and gradient norm of an update, checked on the device; above, it is skipped. math.inf: no limit."""

    max_loss: float = math.inf
    max_grad_norm: float = math.inf


NO_LIMITS = UpdateLimits()


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
