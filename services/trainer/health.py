"""Health of training: each step is judged by its metrics, bad ones are logged with the sources of their data."""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.atomic_file import Publishing
from workloads.base.batch import Batch
from workloads.base.context import UpdateLimits
from workloads.base.training import Alarm

logger = logging.getLogger(__name__)


class Unhealthy(Exception):
    """Error: training can't continue from this state."""

    def __init__(self, reason: str, faults: tuple[tuple[TakenStep, Verdict], ...] = ()) -> None:
        super().__init__(reason)
        self.faults = faults
        """Critical steps."""


class NotFinite(Unhealthy):
    """Error: weights that are not finite are not written."""


SKIPPED_UPDATES = "skipped_updates"
"""Metric: number of updates that the task skipped in a step, since a loss or gradient was not finite or too large."""


class HealthLimits(NamedTuple):
    """Limits of a step's health, and of the rollbacks that follow. A model that learns stays far from them."""

    warning_loss: float = 1e4
    """Absolute loss above which a step is a warning."""
    critical_loss: float = 1e6
    """Absolute loss above which a step is critical: its update is skipped, and training rolls back."""
    warning_grad_norm: float = 1e5
    """Norm of a network's gradient above which a step is a warning."""
    critical_grad_norm: float = 1e7
    """Norm of a network's gradient above which a step is critical: its update is skipped, and training rolls back."""
    warning_grad_ratio: float = 1000.0
    """Ratio of a gradient norm to its running median above which a step is a warning."""
    critical_grad_ratio: float = 100_000.0
    """Ratio of a gradient norm to its running median above which a step is critical."""
    grad_norm_floor: float = 10.0
    """Norm up to which gradients are never compared with their median: small norms vary by large factors."""
    median_steps: int = 201
    """Healthy steps in a running median; nothing is compared before there are a tenth of them."""
    rollbacks: int = 3
    """Rollbacks to the last good checkpoint. At the next one training stops."""
    learning_rate_factor: float = 0.5
    """Factor of all learning rates at each rollback."""
    recovered_steps: int = 20_000
    """Steps without a critical one after which the count of rollbacks restarts from 0; the rates stay lowered."""


LIMITS = HealthLimits()
UPDATE_LIMITS = UpdateLimits(LIMITS.critical_loss, LIMITS.critical_grad_norm)
"""The critical limits, as a task checks them on the device."""


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

    def __init__(
        self, alarms: Mapping[str, float | Alarm] = MappingProxyType({}), limits: HealthLimits | None = None
    ) -> None:
        """``alarms``: see Training."""
        self.limits = limits = limits or LIMITS
        self.alarms = {name: one if isinstance(one, Alarm) else Alarm(above=float(one)) for name, one in alarms.items()}
        self.rollbacks = 0
        """Number of rollbacks since training last recovered."""
        self._rolled_back_step = 0
        self._beyond: Counter[str] = Counter()
        """Consecutive steps beyond an alarm's limits, by metric."""
        self._norms: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=limits.median_steps))

    def judge(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        """Verdict on a step. All metrics must be finite.

        Judged by name: `…_loss`, `…_grad_norm`, `skipped_updates`, and the model's alarms.
        """
        limits = self.limits.warning_loss, self.limits.critical_loss
        verdicts = [_above(name, abs(value), *limits) for name, value in metrics.items() if name.endswith("_loss")]
        verdicts += self._gradients(metrics)
        if (num := metrics.get(SKIPPED_UPDATES, 0.0)) > 0:
            reason = f"{num:g} update(s) left out: a loss or gradient was not finite or too large"
            verdicts.append(Verdict(Health.CRITICAL, (reason,)))
        for name, value in metrics.items():
            alarm = self.alarms.get(name)
            if alarm is None or not alarm.is_beyond(value):
                self._beyond.pop(name, None)
                continue
            self._beyond[name] += 1
            if self._beyond[name] >= alarm.steps:
                verdicts.append(Verdict(Health.WARNING, (alarm.message(name, value),)))
        verdicts += [
            Verdict(Health.CRITICAL, (f"{name} is {value}",))
            for name, value in metrics.items()
            if not math.isfinite(value)
        ]
        health = max((verdict.health for verdict in verdicts), default=Health.HEALTHY)
        if health is Health.HEALTHY:
            # An outlier must not change the reference.
            for name, value in metrics.items():
                if name.endswith("_grad_norm") and value > 0:
                    self._norms[name].append(value)
        if health is Health.CRITICAL:
            self._rolled_back_step = step  # nothing has recovered yet
        elif step - self._rolled_back_step >= self.limits.recovered_steps:
            self.rollbacks = 0
        worst = [verdict for verdict in verdicts if verdict.health is health]
        return Verdict(health, tuple(reason for verdict in worst for reason in verdict.reasons))

    @property
    def may_roll_back(self) -> bool:
        """False once the allowed rollbacks did not help."""
        return self.rollbacks < self.limits.rollbacks

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
        self._beyond = Counter(state["beyond"])
        self._norms.clear()
        for name, values in state["norms"].items():
            self._norms[name].extend(values)

    def _gradients(self, metrics: Mapping[str, float]) -> list[Verdict]:
        limits = self.limits
        verdicts = []
        for name, value in metrics.items():
            if not name.endswith("_grad_norm"):
                continue
            verdicts.append(_above(name, value, limits.warning_grad_norm, limits.critical_grad_norm))
            norms = self._norms[name]
            if value > limits.grad_norm_floor and len(norms) >= max(limits.median_steps // 10, 1):
                ratio = value / statistics.median(norms)
                what = f"{name} over its median"
                verdicts.append(_above(what, ratio, limits.warning_grad_ratio, limits.critical_grad_ratio))
        return verdicts


def _above(name: str, value: float, warning: float, critical: float) -> Verdict:
    """Return the verdict on a value with two limits. Values that are not finite are judged elsewhere."""
    if math.isfinite(value):
        for health, limit in ((Health.CRITICAL, critical), (Health.WARNING, warning)):
            if value > limit:
                return Verdict(health, (f"{name} is {value:.4g}, above the {health.label} limit of {limit:g}",))
    return Verdict()


class Place(NamedTuple):
    """Origin of a microbatch."""

    shard: int
    epoch: int
    unit: int
    microbatch: int


@dataclass(frozen=True)
class TakenStep:
    """Step with its metrics on the host."""

    step: int
    places: tuple[Place, ...]
    """Origin of its microbatches; with several ranks: of those of this rank."""
    metrics: dict[str, float]


HEALTH_FILE = "health.jsonl"


class HealthLog:
    """Append-only log: restarts and repeated steps add to it."""

    def __init__(self, path: Path, publishing: Publishing = nullcontext) -> None:
        """``publishing``: context of each line, of several nodes."""
        self.path = path
        self._publishing = publishing

    def write(self, taken: TakenStep, verdict: Verdict, action: str) -> None:
        """Write one line for a step. Numbers that JSON can't represent become texts: "nan", "inf"."""
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in sorted(taken.metrics.items())}
        line = {
            "step": taken.step,
            "verdict": verdict.health.label,
            "reasons": verdict.reasons,
            "action": action,
            "metrics": metrics,
            "batch": [place._asdict() for place in taken.places],
        }
        with self._publishing():
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(line) + "\n")


class Guard:
    """Guard of one trainer's health: notes each step, and judges at intervals, for which the host waits for the device.
    Each step holds a row of metrics on the device until then."""

    def __init__(self, watch: HealthWatch, log: HealthLog) -> None:
        self.watch = watch
        self.log = log
        self.health = Health.HEALTHY
        """Health of the steps up to the last look()."""
        self._worst = Health.HEALTHY
        self.reason = ""
        """Reason of the newest warning or critical step."""
        self._steps: list[tuple[int, tuple[Place, ...], tuple[str, ...]]] = []
        """Number, places and names of the metrics of each step since the last look()."""
        self._rows: list[Tensor] = []

    def note(self, step: int, batch: Batch, metrics: Mapping[str, Tensor]) -> None:
        """Record a step, without waiting for the device. The metrics, 0-dim, are copied: a graph may overwrite them."""
        places = tuple(Place(one.shard, one.epoch, one.unit, one.index) for one in batch.microbatches)
        self._steps.append((step, places, tuple(metrics)))
        if metrics:
            self._rows.append(torch.stack([value.detach().float() for value in metrics.values()]))

    def look(self) -> None:
        """Judge the steps since the last call; waits for the device. Raises Unhealthy if one is critical."""
        values = iter(torch.cat(self._rows).tolist() if self._rows else ())
        steps = [TakenStep(step, places, {name: next(values) for name in names}) for step, places, names in self._steps]
        self._forget()
        judged = [(taken, self.watch.judge(taken.step, taken.metrics)) for taken in steps]
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
        self._forget()
        self.health = self._worst = Health.HEALTHY

    def _forget(self) -> None:
        self._steps.clear()
        self._rows.clear()
