"""Folder `checkpoints/` of a run: one trainer at a time, each file complete or absent. No torch.

Subclasses define the format: checkpoint.py (weights), counting/checkpoint.py (no weights).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from common.atomic_file import replacing
from common.attempt import RunAttempt, publishing_of
from common.errors import BadInputError
from common.file_lock import RunLock, patience
from common.transport import StopRequested
from services.config.trainer import is_known_model, removed_model
from workloads.base.checkpoint import CHECKPOINT_FOLDER, STEP_NAME, UnreadableError


def checkpoint_folder(run_dir: Path, attempt: RunAttempt | None) -> Path:
    """Folder of a run's checkpoints: in the run directory, or in the folder that its nodes share."""
    return (run_dir if attempt is None else attempt.shared) / CHECKPOINT_FOLDER


class CheckpointFolder(ABC):
    """Checkpoints of a run, of which the newest ``keep`` stay."""

    suffix: ClassVar[str]

    def __init__(
        self, run_dir: Path, keep: int, *, wait_s: float, stopped: Callable[[], bool], attempt: RunAttempt | None = None
    ) -> None:
        """Waits for a trainer that is just ending (it may be writing the newest checkpoint).

        Of several nodes they are in the folder that these share, and a later ``attempt`` waits for nobody: a trainer
        of an older one may be frozen, and publishes nothing more.

        Raises BadInputError if it doesn't end within ``wait_s``, StopRequested once ``stopped()`` is true.
        """
        self._folder = checkpoint_folder(run_dir, attempt)
        self._keep = keep
        self._attempt = attempt
        self._publishing = publishing_of(attempt)
        """Context of every change of the folder."""
        self._lock: RunLock | None = None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if attempt is None:
            self._lock = self._locked(run_dir, wait_s, stopped)
        with self._publishing():  # else a trainer of an older attempt, as it wakes up, deletes that of the newest one
            for part in self._folder.glob("*.part"):
                part.unlink(missing_ok=True)  # of a trainer killed during a write

    @staticmethod
    def _locked(run_dir: Path, wait_s: float, stopped: Callable[[], bool]) -> RunLock:
        patient = patience(wait_s)

        def wait() -> bool:
            if stopped():
                raise StopRequested
            return patient()

        return RunLock(run_dir, "trainer", "trainer", wait)

    def close(self) -> None:
        """Release the folder for the next trainer; the kernel does it if this process is killed."""
        if self._lock is not None:
            self._lock.close()

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Newest checkpoint; None before the first. Raises BadInputError if it can't be read."""
        paths = self._all()
        if not paths:
            return None
        try:
            return paths[0], self._read(paths[0])
        except UnreadableError as error:
            raise BadInputError(f"{error}; delete it to resume from the one before") from None

    def foreign(self) -> Path | None:
        """Newest checkpoint of the other kind, with weights or without; None if there is none."""
        names = (match for path in self._folder.iterdir() if (match := STEP_NAME.fullmatch(path.name)))
        return max((self._folder / match[0] for match in names if f".{match[2]}" != self.suffix), default=None)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}{self.suffix}"

    def _save(self, step: int, content: dict[str, Any]) -> Path:
        """Write a checkpoint atomically; it is on disk on return.

        Checkpoints of later steps are deleted: training was rolled back. Raises OSError (ENOSPC); the former
        checkpoints are untouched then, and OutdatedAttemptError.
        """
        path = self._path(step)
        with replacing(path, durable=True, part=self._part_of(path), publishing=self._publishing) as part:
            try:
                with part.open("wb") as file:
                    self._write(content, file)
            except RuntimeError:
                # torch's writer turns a full disk into a RuntimeError without an errno.
                if _free_bytes(self._folder) < 1 << 20:
                    raise OSError(28, os.strerror(28), str(path)) from None
                raise
        with self._publishing():
            newest_first = self._all()
            num_later = newest_first.index(path)
            for needless in (*newest_first[:num_later], *newest_first[num_later + self._keep :]):
                needless.unlink()
        return path

    def _part_of(self, path: Path) -> Path:
        """Name of a file until it is complete; each attempt has its own, since one that woke up may still write."""
        return path.with_suffix(f".{self._attempt.number}.part" if self._attempt is not None else ".part")

    @abstractmethod
    def _write(self, content: dict[str, Any], file: BinaryIO) -> None: ...

    @abstractmethod
    def _read(self, path: Path) -> dict[str, Any]: ...

    def _all(self) -> list[Path]:
        """All checkpoints, newest first."""
        found = (path for path in self._folder.iterdir() if path.suffix == self.suffix)
        return sorted((path for path in found if STEP_NAME.fullmatch(path.name)), reverse=True)


def other_model(step: int, model: str, asked: str) -> BadInputError:
    """Error of a run that can't continue because another model wrote its checkpoint."""
    remedy = f"resume with --model {model}, or use --fresh to start over"
    if not is_known_model(model):
        remedy = removed_model(model)
    return BadInputError(
        f"the checkpoint at step {step} is of the model {model!r}, and trainer.model = {asked!r}: {remedy}"
    )


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
