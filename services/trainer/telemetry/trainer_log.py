"""Lines of a trainer's log about a run of days: the first step and one every ten minutes, checkpoints, the end."""

from __future__ import annotations

import logging
import math

from common.durations import duration
from common.run_words import training_words
from common.status import TrainerStatus

logger = logging.getLogger(__name__)

STEP_LINE_S = 600.0
CHECKPOINT_LINE_S = 60.0


class TrainerLog:
    """Log of a trainer's progress, at most one line in STEP_LINE_S and CHECKPOINT_LINE_S. The time is passed in."""

    def __init__(self) -> None:
        self._step_s = self._checkpoint_s = -math.inf

    def checkpointed(self, now_s: float, name: str) -> None:
        """Log a checkpoint on disk."""
        if now_s - self._checkpoint_s >= CHECKPOINT_LINE_S:
            self._checkpoint_s = now_s
            logger.info("checkpoint %s", name)

    def progressed(self, now_s: float, status: TrainerStatus) -> None:
        """Log the progress, or the end."""
        if status.state in ("finished", "stopped"):
            logger.info(
                "%s at step %d after %s in all: %s events trained, newest checkpoint %s",
                status.state,
                status.step,
                duration(status.seconds),
                f"{status.counters.events_trained:,}",
                status.checkpoint or "none",
            )
        elif status.state == "training" and now_s - self._step_s >= STEP_LINE_S:
            self._step_s = now_s
            logger.info("%s", training_words(status))
