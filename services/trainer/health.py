"""Whether training is healthy."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateLimits:
    """An update with more is left out, like one that is not finite."""

    max_loss: float = math.inf
    """Largest absolute value of a loss."""
    max_grad_norm: float = math.inf
    """Largest norm of a network's gradient."""
