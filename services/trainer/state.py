"""State of training: task, position in the stream, counters. A checkpoint stores all of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from services.config.health import HealthConfig
from services.trainer.health.health import HealthWatch
from services.trainer.plan_change import MisfitError
from services.trainer.progress import TrainingProgress
from services.trainer.telemetry.window import WindowedMean
from workloads.base.limits import Alarm
from workloads.base.task import Task

AVERAGED_STEPS = 500


class TrainState(TrainingProgress):
    """State of training. Mutable: the loop advances it, a checkpoint stores it."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        plan_hash: str,
        *,
        shards: int = 1,
        health: HealthConfig | None = None,
        headline: str = "loss",
        shown: Sequence[str] = (),
        alarms: Mapping[str, float | Alarm] = MappingProxyType({}),
    ) -> None:
        """``headline``: metric shown as a mean over the last steps; ``shown``: other metrics of the status file;
        ``alarms``: see Training."""
        super().__init__(plan_hash, shards=shards)
        self.task = task
        self.device = device
        self.headline = headline
        self.shown = (*shown, f"{headline}_ma_{AVERAGED_STEPS}")
        self.recent = WindowedMean(AVERAGED_STEPS, device)
        """Windowed mean of the headline metric."""
        self.watch = HealthWatch(health or HealthConfig(), alarms)

    def recent_mean(self) -> dict[str, Tensor]:
        """Recent mean, by its name as a metric."""
        return {f"{self.headline}_ma_{AVERAGED_STEPS}": self.recent.mean()}

    def checkpoint(self, config_json: str) -> dict[str, Any]:
        """State as stored in a checkpoint: tensors, numbers and texts."""
        return super().checkpoint(config_json) | {
            self.headline: self.recent.state_dict(),
            "watch": self.watch.state_dict(),
            "task": self.task.state_dict(),
            "rng_cpu": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, checkpoint: Mapping[str, Any], *, accept_new_plan: bool) -> None:
        """Continue from a checkpoint.

        Raises BadInputError if it belongs to another plan; with ``accept_new_plan`` its weights are kept, and the
        stream restarts.
        """
        super().restore(checkpoint, accept_new_plan=accept_new_plan)
        try:
            self.task.load_state_dict(checkpoint["task"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise MisfitError(self.step, reason) from None
        self.recent.load_state_dict(checkpoint[self.headline])
        self.watch.load_state_dict(checkpoint["watch"])
        torch.set_rng_state(checkpoint["rng_cpu"])
        if self.device.type == "cuda" and checkpoint["rng_cuda"] is not None:
            torch.cuda.set_rng_state(checkpoint["rng_cuda"], self.device)
