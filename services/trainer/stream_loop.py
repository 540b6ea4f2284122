"""Loop of every trainer: batches in, steps, audit, commits. Independent of the model; needs no torch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Literal

from common.transport import StopRequested
from services.trainer.checkpoints.commits import Commits
from services.trainer.health.unhealthy import Unhealthy
from services.trainer.progress import TrainingProgress
from services.trainer.stream.audit import Audit
from services.trainer.stream.fed_batch import FedBatch
from services.trainer.stream.feed import Feed
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.batch import Batch

_END: Any = object()


class StreamLoop(ABC):
    """Loop of one process; subclasses define the step."""

    def __init__(
        self,
        progress: TrainingProgress,
        feed: Feed,
        commits: Commits,
        telemetry: Telemetry,
        audit: Audit | None,
        *,
        max_steps: int,
    ) -> None:
        """``max_steps``: number of the last step; 0: no limit."""
        self._progress = progress
        self._feed = feed
        self._commits = commits
        self._telemetry = telemetry
        self._audit = audit
        self._max_steps = max_steps
        self._started_s = time.monotonic() - progress.seconds

    def run(self, stopped: Callable[[], bool]) -> Literal["finished", "stopped"]:
        """Train until the plan ends, ``max_steps`` is reached, or ``stopped()`` is true. Ends with a checkpoint.

        Raises BadInputError if training diverges repeatedly.
        """
        with closing(self._commits):
            while True:
                try:
                    plan_ended = self._run_on(stopped)
                    break
                except Unhealthy as unhealthy:
                    self.go_back(unhealthy)
                    with suppress(StopRequested):
                        self._feed.reconnect()
        if plan_ended or self._is_enough:
            self._feed.finished(self._progress.position)
            return "finished"
        return "stopped"

    @abstractmethod
    def step(self, batch: Batch) -> None:
        """Train on a batch."""

    @abstractmethod
    def after_step(self, fed: FedBatch) -> None:
        """Evaluate the step, after its position counts as trained. Raises Unhealthy."""

    @abstractmethod
    def step_done(self, batch: Batch) -> None:
        """Hook at the end of a step, after its commits."""

    def go_back(self, unhealthy: Unhealthy) -> None:
        """Roll the progress back to a good checkpoint."""
        raise unhealthy

    @property
    def _is_enough(self) -> bool:
        return 0 < self._max_steps <= self._progress.step

    def _run_on(self, stopped: Callable[[], bool]) -> bool:
        """Make steps until there is a reason to end, then a checkpoint; True if the plan ended."""
        progress, feed = self._progress, self._feed
        with closing(feed.stream(progress.position)) as stream:
            while not self._is_enough and not stopped():
                fed = next(stream, _END)
                if fed is _END:
                    break
                if feed.outside_values:
                    self._telemetry.warn((feed.outside_values,))
                if fed is None:
                    self._telemetry.waiting(progress, feed.waits)
                    self._commit()
                    continue
                self.step(fed.batch)
                progress.step += 1
                progress.position = fed.position
                progress.seconds = time.monotonic() - self._started_s
                if self._audit:
                    self._audit.write(fed.audit_lines)
                self.after_step(fed)
                self._commit(stepped=True)
                self.step_done(fed.batch)
        if feed.ended:
            progress.position = feed.position  # units without events may stand behind the last batch
        self._commit(ending=True)
        return feed.ended

    def _commit(self, *, stepped: bool = False, ending: bool = False) -> None:
        self._progress.seconds = time.monotonic() - self._started_s
        self._commits.turn(stepped=stepped, ending=ending)
