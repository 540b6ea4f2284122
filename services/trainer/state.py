"""State of training: task, place in the stream, counters. A checkpoint stores all of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from common.config import StreamConfig
from common.errors import BadInputError
from services.trainer.health import HealthLimits, HealthWatch
from services.trainer.position import read_position, start_of
from workloads.base.training import Alarm, Task


class WindowedMean:
    """Mean of the last ``size`` values; NaN while one of them is not finite."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._values = torch.zeros(size, dtype=torch.float64, device=device)
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Add a 0-dim value."""
        self._values[self._count % len(self._values)] = value.detach()
        self._count += 1

    def mean(self) -> Tensor:
        """Mean, 0-dim; 0 before the first value."""
        filled = max(min(self._count, len(self._values)), 1)
        mean = self._values[:filled].mean()
        return torch.where(mean.isfinite(), mean, torch.nan).float()

    def state_dict(self) -> dict[str, Tensor | int]:
        """State for the checkpoint."""
        return {"values": self._values, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore state_dict(), bit for bit."""
        self._values.copy_(state["values"])
        self._count = state["count"]


AVERAGED_STEPS = 500


class TrainState:
    """State of training. Mutable: the loop advances it, a checkpoint stores it."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        plan_hash: str,
        *,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
        headline: str = "loss",
        shown: Sequence[str] = (),
        alarms: Mapping[str, float | Alarm] = MappingProxyType({}),
        limits: HealthLimits | None = None,
    ) -> None:
        """``headline``: metric shown as a mean over the last steps; ``shown``: other metrics of the status file;
        ``alarms``: see Training."""
        self.task = task
        self.device = device
        self.plan_hash = plan_hash
        self.step = 0
        self.seconds = 0.0
        """Training time over all restarts."""
        self._stream = stream
        self.position = start_of(stream)
        self.audit_bytes: dict[str, int] = {}
        """Size of each audit file: see audit.py."""
        self.headline = headline
        self.mean_name = f"{headline}_ma_{AVERAGED_STEPS}"
        """Name of the windowed mean as a metric."""
        self.shown = (*shown, self.mean_name)
        """Metrics shown in the status file."""
        self.recent = WindowedMean(AVERAGED_STEPS, device)
        """Windowed mean of the headline metric."""
        self.watch = HealthWatch(alarms, limits)

    def checkpoint(self, config_json: str) -> dict[str, Any]:
        """Return the state as stored in a checkpoint: tensors, numbers and texts."""
        return {
            "plan_hash": self.plan_hash,
            "step": self.step,
            "seconds": self.seconds,
            "position": self.position.model_dump_json(),
            "audit_bytes": self.audit_bytes,
            "config": config_json,
            self.headline: self.recent.state_dict(),
            "watch": self.watch.state_dict(),
            "task": self.task.state_dict(),
            "rng_cpu": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. Of another plan (see require_same_plan) its weights are kept, and the training so
        far still counts; the stream begins at its start.

        Raises BadInputError for a position of another version, and the errors of torch if the weights fit no network.
        """
        self.step = checkpoint["step"]
        self.seconds = checkpoint["seconds"]
        try:
            self.position = read_position(checkpoint["position"])
            self.audit_bytes = dict(checkpoint["audit_bytes"])
        except (ValidationError, TypeError):
            raise BadInputError(
                f"the checkpoint at step {self.step} was written by another version of icestream: use --fresh"
            ) from None
        if checkpoint["plan_hash"] != self.plan_hash:
            self.position = start_of(self._stream, self.position)
        self.task.load_state_dict(checkpoint["task"])
        self.recent.load_state_dict(checkpoint[self.headline])
        self.watch.load_state_dict(checkpoint["watch"])
        torch.set_rng_state(checkpoint["rng_cpu"])
        if self.device.type == "cuda" and checkpoint["rng_cuda"] is not None:
            torch.cuda.set_rng_state(checkpoint["rng_cuda"], self.device)
