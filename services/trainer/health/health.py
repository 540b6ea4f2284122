"""Health of training, judged by the metrics of its steps. Pure: numbers in, a verdict out."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from services.config.health import HealthConfig
from workloads.base.limits import Alarm, UpdateLimits

SKIPPED_UPDATES = "skipped_updates"
"""Metric: number of updates that the task skipped in a step, since a loss or gradient was not finite or too large."""


def update_limits(config: HealthConfig) -> UpdateLimits:
    """Critical limits, as a task checks them."""
    return UpdateLimits(config.critical_loss or math.inf, config.critical_grad_norm or math.inf)


class Health(IntEnum):
    """Health state, with the values of health/state on TensorBoard."""

    HEALTHY = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        """Name in logs and files."""
        return self.name.lower()


@dataclass(frozen=True)
class Verdict:
    """Health state with the reasons for it."""

    health: Health = Health.HEALTHY
    reasons: tuple[str, ...] = ()


class HealthWatch:
    """Judge of steps, in order, and counter of rollbacks. Ranks with the same metrics come to the same verdicts."""

    def __init__(self, config: HealthConfig, alarms: Mapping[str, float | Alarm] = MappingProxyType({})) -> None:
        """``alarms``: see Training."""
        self.config = config
        self.alarms = {name: one if isinstance(one, Alarm) else Alarm(above=float(one)) for name, one in alarms.items()}
        self.rollbacks = 0
        """Number of rollbacks since training last recovered."""
        self._rolled_back_step = 0
        self._beyond: Counter[str] = Counter()
        """Consecutive steps beyond an alarm's limits, by metric."""
        self._norms: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=config.median_steps))

    def judge(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        """Verdict on a step. All metrics must be finite.

        Judged by name: `…_loss`, `…_grad_norm`, `skipped_updates`, and the model's alarms.
        """
        found = [
            *self._losses(metrics),
            *self._gradients(metrics),
            *self._skipped(metrics),
            *self._alarmed(metrics),
        ]
        found += [
            Verdict(Health.CRITICAL, (f"{name} is {value}",))
            for name, value in metrics.items()
            if not math.isfinite(value)
        ]
        health = max((one.health for one in found), default=Health.HEALTHY)
        if health is Health.HEALTHY:
            # An outlier must not change the reference.
            for name, value in metrics.items():
                if name.endswith("_grad_norm") and value > 0:
                    self._norms[name].append(value)
        if health is Health.CRITICAL:
            self._rolled_back_step = step  # nothing has recovered yet
        elif step - self._rolled_back_step >= self.config.recovered_steps:
            self.rollbacks = 0
        return Verdict(health, tuple(reason for one in found if one.health is health for reason in one.reasons))

    @property
    def may_roll_back(self) -> bool:
        """False once the allowed rollbacks did not help."""
        return self.rollbacks < self.config.rollbacks

    def rolled_back(self, step: int) -> None:
        """Record a rollback to ``step``."""
        self.rollbacks += 1
        self._rolled_back_step = step

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {
            "rollbacks": self.rollbacks,
            "rolled_back_step": self._rolled_back_step,
            "norms": {name: list(values) for name, values in self._norms.items()},
            "beyond": dict(self._beyond),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore state_dict()."""
        self.rollbacks = int(state["rollbacks"])
        self._rolled_back_step = int(state["rolled_back_step"])
        self._beyond = Counter(state.get("beyond", {}))  # checkpoints of earlier versions have none
        self._norms.clear()
        for name, values in state["norms"].items():
            self._norms[name].extend(values)

    def _alarmed(self, metrics: Mapping[str, float]) -> list[Verdict]:
        found = []
        for name, value in metrics.items():
            alarm = self.alarms.get(name)
            if alarm is None or not alarm.is_beyond(value):
                self._beyond.pop(name, None)
                continue
            self._beyond[name] += 1
            if self._beyond[name] >= alarm.steps:
                found.append(Verdict(Health.WARNING, (alarm.message(name, value),)))
        return found

    def _losses(self, metrics: Mapping[str, float]) -> list[Verdict]:
        config = self.config
        return [
            _above(name, abs(value), config.warning_loss, config.critical_loss, "trainer.health.{}_loss")
            for name, value in metrics.items()
            if name.endswith("_loss")
        ]

    def _gradients(self, metrics: Mapping[str, float]) -> list[Verdict]:
        config = self.config
        found = []
        for name, value in metrics.items():
            if not name.endswith("_grad_norm"):
                continue
            key = "trainer.health.{}_grad_norm"
            found.append(_above(name, value, config.warning_grad_norm, config.critical_grad_norm, key))
            norms = self._norms[name]
            if value > config.grad_norm_floor and len(norms) >= max(config.median_steps // 10, 1):
                ratio = value / statistics.median(norms)
                key = "trainer.health.{}_grad_ratio"
                what = f"{name} over its median"
                found.append(_above(what, ratio, config.warning_grad_ratio, config.critical_grad_ratio, key))
        return found

    def _skipped(self, metrics: Mapping[str, float]) -> list[Verdict]:
        num = metrics.get(SKIPPED_UPDATES, 0.0)
        if not num > 0:
            return []
        limit = self.config.critical_skipped_updates
        health = Health.CRITICAL if 0 < limit <= num else Health.WARNING
        return [Verdict(health, (f"{num:g} update(s) left out: a loss or gradient was not finite or too large",))]


def _above(name: str, value: float, warning: float, critical: float, key: str) -> Verdict:
    """Verdict on limits; ``key`` has a {} for warning or critical. Values that are not finite are judged elsewhere."""
    if math.isfinite(value):
        for health, limit in ((Health.CRITICAL, critical), (Health.WARNING, warning)):
            if 0 < limit < value:
                return Verdict(health, (f"{name} is {value:.4g}, above {key.format(health.label)} = {limit:g}",))
    return Verdict()
