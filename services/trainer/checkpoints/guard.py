"""Health guard of one trainer: records each step, and judges all recorded steps at intervals."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from services.trainer.health.health import Health, HealthWatch
from services.trainer.health.health_log import HealthLog
from services.trainer.health.recent_steps import RecentSteps
from services.trainer.health.unhealthy import Unhealthy
from workloads.base.batch import Batch

logger = logging.getLogger(__name__)


class Guard:
    """Health guard: see the module."""

    def __init__(self, watch: HealthWatch, log: HealthLog) -> None:
        self.watch = watch
        self.log = log
        self.health = Health.HEALTHY
        """Health of the steps up to the last look()."""
        self._worst = Health.HEALTHY
        self.reason = ""
        """Reason of the newest warning or critical step."""
        self._recent = RecentSteps()

    def note(self, step: int, batch: Batch, metrics: Mapping[str, Tensor]) -> None:
        """Record a step, without waiting for the device."""
        self._recent.add(step, batch, metrics)

    def look(self) -> None:
        """Judge the steps since the last call; waits for the device. Raises Unhealthy if one is critical."""
        judged = [(taken, self.watch.judge(taken.step, taken.metrics)) for taken in self._recent.read()]
        if not judged:
            return
        before, self.health = self.health, max(verdict.health for _, verdict in judged)
        self._worst = max(self._worst, self.health)
        faults = tuple((taken, verdict) for taken, verdict in judged if verdict.health is self.health)
        first, verdict = faults[0]
        if self.health is not Health.HEALTHY:
            self.reason = f"step {first.step}: {'; '.join(verdict.reasons)}"
        if self.health is Health.CRITICAL:
            raise Unhealthy(self.reason, faults)
        if self.health is Health.WARNING and before is Health.HEALTHY:  # else the warning was logged before
            logger.warning("training: %s", self.reason)
            self.log.write(first, verdict, "none")

    def take_worst(self) -> Health:
        """Worst health of all steps since the last call, on which a checkpoint depends."""
        worst, self._worst = self._worst, Health.HEALTHY
        return worst

    def begin_again(self) -> None:
        """Reset after a rollback."""
        self._recent.forget()
        self.health = self._worst = Health.HEALTHY

    def scalars(self) -> dict[str, float]:
        """Scalars for TensorBoard."""
        return {"health/state": float(self.health), "health/rollbacks": float(self.watch.rollbacks)}
