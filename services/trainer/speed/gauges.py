"""Measurements beside the training, once in a process: its pace, a profile, the replay ceiling."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common.status import TrainerStatus
from services.config.trainer import TrainerConfig
from services.trainer.speed.pace import Pace
from services.trainer.speed.profile import StepProfile
from services.trainer.speed.replay import SpreadSample, measure, write_ceiling
from services.trainer.state import TrainState
from workloads.base.batch import Batch

logger = logging.getLogger(__name__)


class Gauges:
    """Measurements of one trainer process. Call stepped() after each step, close() at the end of training.

    With several ranks the first is profiled, and there is no replay: each rank would set its number of rounds by its
    own clock, and wait for the others' gradients for ever.
    """

    def __init__(
        self, run_dir: Path, config: TrainerConfig, device: torch.device, *, rank: int = 0, ranks: int = 1
    ) -> None:
        self._run_dir = run_dir
        self._replay_s = config.replay_s
        self._pace = Pace()
        self._profile = (
            StepProfile(run_dir, config.profile_steps, device) if config.profile_steps and not rank else None
        )
        self._sample = SpreadSample(config.replay_batches) if config.replay_batches and ranks == 1 else None
        if config.replay_batches and ranks > 1:
            logger.warning(
                "trainer.replay_batches: the replay ceiling is measured with one trainer only, not with %d", ranks
            )

    def stepped(self, step: int, batch: Batch) -> None:
        """Record the end of step ``step`` of the run."""
        if self._sample is not None:
            self._sample.add(batch)
        if self._profile is not None and not self._profile.done:
            self._profile.stepped(step)
            self._pace = Pace()  # profiled steps are slower and don't count
        self._pace.stepped(time.monotonic(), batch.total_events)

    def close(self, state: TrainState, status: TrainerStatus, *, stopped: Callable[[], bool]) -> TrainerStatus:
        """Final status with the measurements. The last checkpoint must be written: the replay changes the weights."""
        if self._profile is not None:
            self._profile.close()
        return status.model_copy(
            update={
                "session_events_per_s": self._pace.events_per_s,
                "replay_events_per_s": self._replay(state, stopped),
            }
        )

    def _replay(self, state: TrainState, stopped: Callable[[], bool]) -> float:
        batches = self._sample.whole() if self._sample is not None else []
        if not batches:
            return 0.0
        ceiling = measure(state.task, batches, state.device, seconds=self._replay_s, stopped=stopped)
        if ceiling is None:
            return 0.0
        write_ceiling(self._run_dir, ceiling)
        logger.info(
            "replay ceiling: %.1f events/s (%d batches, %d rounds, %.1f ms a step)",
            ceiling.events_per_s,
            ceiling.batches,
            ceiling.rounds,
            1e3 * ceiling.s_per_step,
        )
        return ceiling.events_per_s
