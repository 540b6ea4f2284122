"""Limits of a single update. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateLimits:
    """Largest loss and gradient norm of an update, checked on the device; above, it is skipped. math.inf: no limit."""

    max_loss: float = math.inf
    max_grad_norm: float = math.inf


NO_LIMITS = UpdateLimits()
