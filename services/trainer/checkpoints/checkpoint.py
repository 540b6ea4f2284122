"""Checkpoints: weights, optimisers, random numbers and the stream's position in one atomic file each."""

from __future__ import annotations

import logging
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from common.errors import BadInputError
from services.trainer.checkpoints.checkpoint_folder import CHECKPOINT_FOLDER, CheckpointFolder, UnreadableError

logger = logging.getLogger(__name__)

BEST = "best.pt"
FORMAT = 2


class Checkpoints(CheckpointFolder):
    """The checkpoints of a run directory; the newest ``keep`` and the best stay. One trainer at a time, by a lock."""

    suffix = ".pt"

    def __init__(self, run_dir: Path, keep: int, *, wait_s: float, stopped: Callable[[], bool]) -> None:
        super().__init__(run_dir, keep, wait_s=wait_s, stopped=stopped)
        self._best_score: float | None = None

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Write a checkpoint: it is there in full or not at all, and on disk when this returns.

        Those of later steps go: training went back behind them. With the lowest ``score`` so far it is `best.pt`, too.
        Raises OSError (ENOSPC); the former checkpoints are untouched then.
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


class FollowedCheckpoints(Checkpoints):
    """Of a rank that is not the first: that one writes for all, and tells when a checkpoint is on disk."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / CHECKPOINT_FOLDER

    def close(self) -> None:
        """Nothing is held."""

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Where the first rank writes it."""
        return self._path(step)


def find_checkpoint(place: Path) -> Path:
    """A checkpoint file, or of a run directory the best one, else the newest. Raises BadInputError."""
    if place.is_file():
        return place
    if not place.is_dir():
        raise BadInputError(f"{place}: no such checkpoint or run directory")
    folder = place if place.name == CHECKPOINT_FOLDER else place / CHECKPOINT_FOLDER
    found = [folder / BEST, *sorted(folder.glob("step-*.pt"), reverse=True)]
    if existing := [path for path in found if path.exists()]:
        return existing[0]
    if any(folder.glob("step-*.json")):
        raise BadInputError(f"{place}: its run only counted events (--model none), it has no weights")
    raise BadInputError(f"{place}: no checkpoint in it; name a checkpoint, or the folder of a run that has one")


def why_unreadable(error: Exception) -> str:
    """What torch.load failed with. Of a pickle that it refuses it advises to run it: that is not passed on."""
    if isinstance(error, pickle.UnpicklingError):
        return "damaged, or not written by icestream"
    return " ".join(str(error).split())[:200]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What was saved, on the CPU. Raises BadInputError that names the file, UnreadableError if it is damaged."""
    if path.suffix == ".json":
        raise BadInputError(f"{path}: of a run that only counted events (--model none), it has no weights")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  damage can make the unpickler fail in any way
        raise UnreadableError(f"{path}: can't be read ({why_unreadable(error)})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise BadInputError(f"{path}: not a checkpoint of format {FORMAT}; use --fresh, or another run directory")
    return state
