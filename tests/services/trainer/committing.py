"""A trainer's commits for tests: a disk with a gate, a fetcher that asks, steps that are counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.messages import Cursor
from services.trainer.checkpoints.commit_policy import Mark
from services.trainer.checkpoints.commits import Commits
from services.trainer.health.unhealthy import Unhealthy
from services.trainer.progress import TrainingProgress
from services.trainer.stream.position import StreamPosition

EVERY = 3


def at(step: int) -> Mark:
    cursor = Cursor(unit=step)
    return Mark(step, StreamPosition(cursor=cursor))


@dataclass
class Disk:
    """Checkpoints of a trainer; each is written once its gate opens, and may fail."""

    progress: TrainingProgress
    files: list[Mark] = field(default_factory=list)
    begun: list[Mark] = field(default_factory=list)
    arrived: list[Mark] = field(default_factory=list)
    fails: dict[int, Exception] = field(default_factory=dict)
    """By number of the draft."""
    gate: threading.Event = field(default_factory=threading.Event)
    judged: list[int] = field(default_factory=list)
    unhealthy_at: int = -1

    def judge(self) -> None:
        self.judged.append(self.progress.step)
        if self.progress.step == self.unhealthy_at:
            raise Unhealthy("by the test")

    def take(self) -> OneDraft:
        assert self.judged[-1] == self.progress.step, "what is saved was judged"
        self.begun.append(Mark(self.progress.step, self.progress.position))
        return OneDraft(self, self.begun[-1], len(self.begun))


@dataclass
class OneDraft:
    disk: Disk
    mark: Mark
    number: int

    def write(self) -> Path:
        assert self.disk.gate.wait(20)
        if self.number in self.disk.fails:
            raise self.disk.fails[self.number]
        self.disk.files.append(self.mark)
        return Path(f"step-{self.mark.step}")

    def arrived(self) -> None:
        self.disk.arrived.append(self.mark)


@dataclass
class Fetcher:
    """The feed's side: a request that waits for its answer, and what was reported."""

    disk: Disk
    requested: bool = False
    alone: bool = True
    """False: what this rank wants is no request before the ranks have agreed on it."""
    wants: bool = False
    pending_since: int = -1
    """Step at which the oldest unanswered request was taken."""
    reported: list[StreamPosition] = field(default_factory=list)

    def take_commit_request(self) -> bool:
        taken, self.requested = self.requested, False
        if taken and self.pending_since < 0:
            self.pending_since = self.disk.progress.step
        return taken

    def want_commit(self) -> None:
        if self.alone:
            self.requested = True
        else:
            self.wants = True

    def committed(self, position: StreamPosition) -> None:
        assert position in [mark.position for mark in self.disk.files], "it is on disk"
        self.reported.append(position)
        if position.cursor.unit >= self.pending_since:
            self.pending_since = -1


class Silence:
    """Telemetry that nobody reads."""

    def checkpointed(self, path: Path, step: int) -> None:
        assert path == Path(f"step-{step}")

    def note(self, step: int, scalars: dict[str, float]) -> None:
        assert scalars.keys() == {"checkpoint/stall_s", "checkpoint/write_s"}


class Trainer:
    """A trainer's commits, moved by a test."""

    def __init__(self, every: int = EVERY) -> None:
        self.progress = TrainingProgress("plan")
        self.disk = Disk(self.progress)
        self.fetcher = Fetcher(self.disk)
        feed: Any = self.fetcher
        telemetry: Any = Silence()
        self.commits = Commits(self.progress, self.disk, feed, telemetry, every)

    def step(self) -> None:
        self.progress.step += 1
        self.progress.position = at(self.progress.step).position
        self.commits.turn(stepped=True)

    def wait_for_disk(self) -> None:
        """Until the write under way has ended."""
        writing = self.commits._writing
        assert writing is not None
        writing.future.exception(20)

    def close(self) -> None:
        self.disk.gate.set()
        self.commits.close()
