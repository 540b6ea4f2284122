"""Errors after which training rolls back to a good checkpoint (services/trainer/checkpoints/rollback.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.trainer.health.health import Verdict
    from services.trainer.health.recent_steps import TakenStep


class Unhealthy(Exception):
    """Error: training can't continue from this state."""

    def __init__(self, reason: str, faults: tuple[tuple[TakenStep, Verdict], ...] = ()) -> None:
        super().__init__(reason)
        self.faults = faults
        """Critical steps."""


class NotFinite(Unhealthy):
    """Error: weights that are not finite are not written."""
