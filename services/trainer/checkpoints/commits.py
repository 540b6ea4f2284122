"""Owner of a trainer's commits: applies the policy once a step, saves in the background, reports what is on disk."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.trainer.checkpoints.commit_policy import Act, Mark, Moment, Write, decide
from services.trainer.health.unhealthy import NotFinite
from services.trainer.progress import TrainingProgress
from services.trainer.stream.feed import Feed
from services.trainer.telemetry.telemetry import Telemetry


class Draft(Protocol):
    """Snapshot being written to disk."""

    def write(self) -> Path:
        """Write the snapshot, in a thread of its own; on disk on return. Raises OSError, or NotFinite."""

    def arrived(self) -> None:
        """Record that the snapshot is on disk; called in the loop's thread."""


class Drafts(Protocol):
    """Source of snapshots."""

    def judge(self) -> None:
        """Raises Unhealthy if the weights must not be saved."""

    def take(self) -> Draft:
        """Snapshot of the training and its position."""


@dataclass(frozen=True)
class _Writing:
    draft: Draft
    mark: Mark
    stall_s: float
    """Time for which the loop was blocked."""
    future: Future[tuple[Path, float]]


@dataclass(frozen=True)
class _Saved:
    path: Path
    mark: Mark
    stall_s: float
    write_s: float


class Commits:
    """Commits of one trainer process; all calls come from the loop's thread."""

    def __init__(
        self, progress: TrainingProgress, drafts: Drafts, feed: Feed, telemetry: Telemetry, every: int
    ) -> None:
        """``every``: steps between checkpoints."""
        self._progress = progress
        self._drafts = drafts
        self._feed = feed
        self._telemetry = telemetry
        self._every = every
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: _Writing | None = None
        self._saved: _Saved | None = None

    def turn(self, *, stepped: bool = False, ending: bool = False) -> None:
        """Carry out the acts that are due; called once a step, and repeatedly while the feed waits for data.

        With ``ending`` all is on disk and reported on return. Raises OSError, and Unhealthy if the weights can't be
        saved.
        """
        moment = Moment(
            now=self._now,
            on_disk=self._saved.mark if self._saved is not None else None,
            writing=self._writing.mark if self._writing is not None else None,
            write=self._write_state(),
            stepped=stepped,
            asked=self._feed.take_commit_request(),
            ending=ending,
        )
        began_s = time.monotonic()
        acts = decide(moment, self._every)
        if Act.SAVE in acts:
            self._drafts.judge()
        for act in acts:
            match act:
                case Act.ASK:
                    self._feed.want_commit()
                case Act.SETTLE:
                    self._settle()
                case Act.SAVE:
                    self._begin(self._drafts.take(), began_s)
                case Act.REPORT:
                    self._report()

    def settle(self) -> None:
        """Wait until nothing is being written, and report. Raises NotFinite or OSError."""
        if self._writing is not None:
            self._settle()
            self._report()

    def replace(self, draft: Draft) -> None:
        """Save the state after a rollback, though the same step may be on disk with other rates. On disk on return."""
        self._begin(draft, time.monotonic())
        self.settle()

    def close(self) -> None:
        """Wait for the thread, whatever its outcome."""
        self._thread.shutdown(wait=True)

    @property
    def _now(self) -> Mark:
        return Mark(self._progress.step, self._progress.position)

    def _write_state(self) -> Write:
        if self._writing is None:
            return Write.NONE
        future = self._writing.future
        if not future.done():
            return Write.RUNNING
        return Write.REFUSED if isinstance(future.exception(), NotFinite) else Write.ENDED

    def _begin(self, draft: Draft, began_s: float) -> None:
        assert self._writing is None
        stall_s = time.monotonic() - began_s
        self._writing = _Writing(draft, self._now, stall_s, self._thread.submit(_timed, draft))

    def _settle(self) -> None:
        writing, self._writing = self._writing, None
        assert writing is not None
        path, write_s = writing.future.result()
        self._saved = _Saved(path, writing.mark, writing.stall_s, write_s)
        writing.draft.arrived()

    def _report(self) -> None:
        saved = self._saved
        assert saved is not None
        self._telemetry.checkpointed(saved.path, saved.mark.step)
        self._telemetry.note(
            saved.mark.step, {"checkpoint/stall_s": saved.stall_s, "checkpoint/write_s": saved.write_s}
        )
        self._feed.committed(saved.mark.position)  # only now may files behind the cursor be evicted


def _timed(draft: Draft) -> tuple[Path, float]:
    began_s = time.monotonic()
    return draft.write(), time.monotonic() - began_s
