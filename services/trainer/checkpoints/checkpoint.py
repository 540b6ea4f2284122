"""Checkpoints: weights, optimisers, random numbers and the stream's position in one atomic file each."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common.errors import BadInputError
from common.file_lock import RunLock, patience
from common.transport import StopRequested
from workloads.base.checkpoint import BEST, CHECKPOINT_FOLDER, FORMAT, UnreadableError, read_checkpoint

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a run directory; the newest ``keep`` and the best stay. One trainer at a time, by a lock."""

    def __init__(self, run_dir: Path, keep: int, *, wait_s: float, stopped: Callable[[], bool]) -> None:
        """Waits for a trainer that is just ending (it may be writing the newest checkpoint).

        Raises BadInputError if it doesn't end within ``wait_s``, StopRequested once ``stopped()`` is true.
        """
        self._folder = run_dir / CHECKPOINT_FOLDER
        self._keep = keep
        self._best_score: float | None = None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        patient = patience(wait_s)

        def wait() -> bool:
            if stopped():
                raise StopRequested
            return patient()

        self._lock = RunLock(run_dir, "trainer", "trainer", wait)
        for part in self._folder.glob("*.part"):
            part.unlink()  # of a trainer that was killed while it wrote

    def close(self) -> None:
        """Let the next trainer in; the kernel does it if we are killed."""
        self._lock.close()

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Write a checkpoint: it is there in full or not at all, and on disk when this returns.

        Those of later steps go: training went back behind them. With the lowest ``score`` so far it is `best.pt`, too.
        Raises OSError (ENOSPC); the former checkpoints are untouched then.
        """
        path = self._folder / f"step-{step:09d}.pt"
        part = path.with_suffix(".part")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                torch.save({"format": FORMAT, **state, "score": score}, file)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:
            free_bytes = _free_bytes(self._folder)
            part.unlink(missing_ok=True)
            # torch's writer turns a full disk into a RuntimeError without an errno.
            if isinstance(error, RuntimeError) and free_bytes < 1 << 20:
                raise OSError(28, os.strerror(28), str(path)) from None
            raise
        part.replace(path)
        _sync_folder(self._folder)
        newest_first = self._all()
        num_later = newest_first.index(path)
        for needless in (*newest_first[:num_later], *newest_first[num_later + self._keep :]):
            needless.unlink()
        if score is not None and math.isfinite(score) and score < self._score_of_best():
            self._link_best(path)
            self._best_score = score
        return path

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint, on the CPU; None before the first. Raises BadInputError if it can't be read."""
        paths = self._all()
        if not paths:
            return None
        try:
            return paths[0], read_checkpoint(paths[0])
        except UnreadableError as error:
            raise BadInputError(f"{error}; delete it to go on from the one before") from None

    def _score_of_best(self) -> float:
        """Infinite if there is none."""
        if self._best_score is None:
            self._best_score = math.inf
            best = self._folder / BEST
            if best.exists():
                try:
                    self._best_score = float(read_checkpoint(best)["score"])
                except BadInputError as error:
                    logger.warning("%s; the next checkpoint with a score takes its place", error)
        return self._best_score

    def _link_best(self, path: Path) -> None:
        part = self._folder / "best.part"
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path)
        except OSError:  # a file system without hard links
            shutil.copy2(path, part)
        part.replace(self._folder / BEST)

    def _all(self) -> list[Path]:
        """Newest first."""
        return sorted((p for p in self._folder.iterdir() if re.fullmatch(r"step-\d{9,}\.pt", p.name)), reverse=True)


class FollowedCheckpoints(Checkpoints):
    """Of a rank that is not the first: that one writes for all, and tells when a checkpoint is on disk."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / CHECKPOINT_FOLDER

    def close(self) -> None:
        """Nothing is held."""

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Where the first rank writes it."""
        return self._folder / f"step-{step:09d}.pt"


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
