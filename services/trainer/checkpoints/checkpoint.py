"""Checkpoints: weights, optimisers, random numbers and the stream's position in one atomic file each."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from common.atomic_file import replacing, sync_folder
from common.attempt import RunAttempt
from common.errors import BadInputError
from services.trainer.checkpoints.checkpoint_folder import CheckpointFolder, checkpoint_folder
from workloads.base.checkpoint import BEST, FORMAT, read_checkpoint

logger = logging.getLogger(__name__)


class Checkpoints(CheckpointFolder):
    """Checkpoints of a run directory; the newest ``keep`` and the best stay. One trainer at a time, by a lock."""

    suffix = ".pt"

    def __init__(
        self, run_dir: Path, keep: int, *, wait_s: float, stopped: Callable[[], bool], attempt: RunAttempt | None = None
    ) -> None:
        super().__init__(run_dir, keep, wait_s=wait_s, stopped=stopped, attempt=attempt)
        self._best_score: float | None = None

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Write a checkpoint atomically; it is on disk on return.

        Checkpoints of later steps are deleted: training was rolled back. With the lowest ``score`` so far it is
        `best.pt`, too. Raises OSError (ENOSPC); the former checkpoints are untouched then.
        """
        path = self._save(step, {"format": FORMAT, **state, "score": score})
        if score is not None and math.isfinite(score) and score < self._score_of_best():
            self._link_best(path)
            self._best_score = score
        return path

    def _write(self, content: dict[str, Any], file: BinaryIO) -> None:
        torch.save(content, file)

    def _read(self, path: Path) -> dict[str, Any]:
        return read_checkpoint(path)

    def _score_of_best(self) -> float:
        """Score of `best.pt`; infinite without one."""
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
        best = self._folder / BEST
        part = self._part_of(best)
        part.unlink(missing_ok=True)
        try:
            part.hardlink_to(path)
        except OSError:  # a file system without hard links
            with replacing(best, durable=True, part=part, publishing=self._publishing) as copy:
                shutil.copyfile(path, copy)
            return
        try:
            with self._publishing():
                part.replace(best)
        finally:
            part.unlink(missing_ok=True)  # also after a rename onto a name of the same file, which does nothing
        sync_folder(self._folder)


class FollowedCheckpoints(Checkpoints):
    """Checkpoints of a rank that is not the first: the first one writes for all, and reports when one is on disk."""

    def __init__(self, run_dir: Path, attempt: RunAttempt | None = None) -> None:
        self._folder = checkpoint_folder(run_dir, attempt)

    def close(self) -> None:
        """Nothing to release."""

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Path at which the first rank writes it."""
        return self._path(step)
