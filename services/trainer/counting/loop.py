"""Loop of a trainer that only counts: batches in, position and audit out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.config.trainer import TrainerConfig
from services.trainer.checkpoints.commits import Commits
from services.trainer.counting.checkpoint import PositionCheckpoints
from services.trainer.progress import TrainingProgress
from services.trainer.speed.pace import Pace
from services.trainer.stream.audit import Audit
from services.trainer.stream.fed_batch import FedBatch
from services.trainer.stream.feed import Feed
from services.trainer.stream_loop import StreamLoop
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.batch import Batch

_SCALARS_S = 0.5
"""Pause between two writes of scalars: steps that take microseconds must not wait for them."""


class CountingLoop(StreamLoop):
    """Loop without a model: each batch counts as trained as soon as it arrives."""

    def __init__(
        self,
        progress: TrainingProgress,
        feed: Feed,
        checkpoints: PositionCheckpoints,
        telemetry: Telemetry,
        audit: Audit | None,
        config: TrainerConfig,
        config_json: str,
    ) -> None:
        drafts = PositionDrafts(progress, checkpoints, audit, config_json)
        commits = Commits(progress, drafts, feed, telemetry, config.checkpoint_every)
        super().__init__(progress, feed, commits, telemetry, audit, max_steps=config.max_steps)
        self.pace = Pace()
        self._scalars_s = 0.0

    def step(self, batch: Batch) -> None:
        """Nothing to train."""

    def after_step(self, fed: FedBatch) -> None:
        now_s = time.monotonic()
        if now_s - self._scalars_s >= _SCALARS_S:
            self._scalars_s = now_s
            self._telemetry.scalars(self._progress, {}, self._feed.waits)

    def step_done(self, batch: Batch) -> None:
        self.pace.stepped(time.monotonic(), batch.total_events)


class PositionDrafts:
    """Source of snapshots of the position alone: see Drafts in commits.py."""

    def __init__(
        self, progress: TrainingProgress, checkpoints: PositionCheckpoints, audit: Audit | None, config_json: str
    ) -> None:
        self._progress = progress
        self._checkpoints = checkpoints
        self._audit = audit
        self._config_json = config_json

    def judge(self) -> None:
        """Nothing to check: every position may be saved."""

    def take(self) -> PositionDraft:
        """Snapshot of the position; the audit up to there is on disk."""
        self._progress.audit_bytes = self._audit.commit() if self._audit else ()
        return PositionDraft(self._checkpoints, self._progress.step, self._progress.checkpoint(self._config_json))


@dataclass(frozen=True)
class PositionDraft:
    """Snapshot of the position: see Draft in commits.py."""

    checkpoints: PositionCheckpoints
    step: int
    content: dict[str, Any]

    def write(self) -> Path:
        """Write the snapshot. Raises OSError."""
        return self.checkpoints.save(self.step, self.content)

    def arrived(self) -> None:
        """Nothing to do: this process has no rollbacks."""
