"""The loop of a trainer that only counts: batches in, position and audit out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

from services.config.trainer import TrainerConfig
from services.trainer.counting.checkpoint import PositionCheckpoints
from services.trainer.progress import Progress
from services.trainer.speed.pace import Pace
from services.trainer.stream.audit import Audit
from services.trainer.stream.feed import Feed
from services.trainer.stream.position import StreamPosition
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.batch import Batch

_SCALARS_S = 0.5
"""Between two writes of scalars: steps that take microseconds shall not wait for them."""


class CountingLoop:
    """Steps without a model: each batch counts as trained as soon as it is there."""

    def __init__(
        self,
        progress: Progress,
        feed: Feed,
        checkpoints: PositionCheckpoints,
        telemetry: Telemetry,
        audit: Audit | None,
        config: TrainerConfig,
        config_json: str,
    ) -> None:
        self._progress = progress
        self._feed = feed
        self._checkpoints = checkpoints
        self._telemetry = telemetry
        self._audit = audit
        self._config = config
        self._config_json = config_json
        self._started_s = time.monotonic() - progress.seconds
        self._scalars_s = 0.0
        self._saved: tuple[Path, int, StreamPosition] | None = None
        self.pace = Pace()

    def run(self, stopped: Callable[[], bool]) -> Literal["finished", "stopped"]:
        """Count until the plan ends, ``max_steps`` is reached, or the process is asked to stop; then save."""
        feed, progress = self._feed, self._progress
        feed.on_commit_request = self._commit
        feed.on_wait = lambda: self._telemetry.waiting(progress, feed.waits)
        with closing(feed.batches(progress.position)) as batches:
            while not self._enough and not stopped():
                fed = next(batches, None)
                if fed is None:
                    break
                self.step(fed.batch)
                progress.step += 1
                progress.position = fed.position
                if self._audit:
                    self._audit.write(fed.audit_lines)
                self._stepped(fed.batch.total_events)
        if feed.ended:
            progress.position = feed.position  # units without events may stand behind the last batch
        self._commit()
        if feed.ended or self._enough:
            feed.finished(progress.position)
            return "finished"
        return "stopped"

    def step(self, batch: Batch) -> None:
        """Nothing: the place of a model's step."""

    @property
    def _enough(self) -> bool:
        return 0 < self._config.max_steps <= self._progress.step

    def _stepped(self, num_events: int) -> None:
        now_s = time.monotonic()
        progress, waits = self._progress, self._feed.waits
        progress.seconds = now_s - self._started_s
        self.pace.stepped(now_s, num_events)
        if now_s - self._scalars_s >= _SCALARS_S:
            self._scalars_s = now_s
            self._telemetry.scalars(progress, {}, waits)
        if progress.step % self._config.checkpoint_every == 0:
            self._commit()

    def _commit(self) -> None:
        """Save, then tell the fetcher: only what is on disk may be evicted."""
        progress = self._progress
        if self._saved is None or self._saved[1:] != (progress.step, progress.position):
            progress.seconds = time.monotonic() - self._started_s
            progress.audit_bytes = self._audit.commit() if self._audit else ()
            path = self._checkpoints.save(progress.step, progress.checkpoint(self._config_json))
            self._saved = path, progress.step, progress.position
        self._telemetry.checkpointed(self._saved[0], progress.step)
        self._feed.committed(progress.position)
