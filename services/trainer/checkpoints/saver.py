"""Checkpoints written in the background: a snapshot holds the loop up for a moment, a thread brings it to the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.checkpoints.snapshot import Snapshot, Snapshots, not_finite
from services.trainer.health.health import Health
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit
from services.trainer.stream.position import StreamPosition


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is on disk."""

    path: Path
    step: int
    position: StreamPosition
    stall_s: float
    """How long the loop was held up."""
    write_s: float


class NotFinite(Exception):
    """Weights that are not finite are not written."""


class Saver:
    """For one trainer. One checkpoint at a time is on its way; only what is on disk is told, by ``on_saved``, which is
    called in the loop's thread: files behind its position may be evicted from then on."""

    def __init__(
        self,
        state: TrainState,
        checkpoints: Checkpoints,
        audit: Audit | None,
        config_json: str,
        on_saved: Callable[[Saved], None],
    ) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._audit = audit
        self._config_json = config_json
        self._on_saved = on_saved
        self._snapshots = Snapshots(state.device)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: _Writing | None = None
        self._saved: Saved | None = None
        self.good = self._snapshot(Health.HEALTHY)
        """Where training goes back to: the start of this process, then the newest healthy checkpoint on disk."""

    def commit(self, health: Health, score: float | None = None, *, audit_bytes: tuple[int, ...] | None = None) -> None:
        """Begin to save what training is at, after it was judged as ``health``. Waits for the checkpoint before.

        Raises NotFinite or OSError if that one could not be written. What is on disk already is told once more.
        ``audit_bytes``: where the audit will be cut; else it is put on disk as it is.
        """
        began_s = time.monotonic()
        state = self._state
        self._wait()  # it is not told: who asked for a checkpoint must not take an older one for the answer
        if self._saved is not None and (self._saved.step, self._saved.position) == (state.step, state.position):
            self._on_saved(self._saved)
            return
        snapshot = self._snapshot(health, audit_bytes)
        stall_s = time.monotonic() - began_s
        future = self._thread.submit(self._write, snapshot, state.step, score)
        self._writing = _Writing(snapshot, health, state.step, state.position, stall_s, future)

    def poll(self) -> None:
        """Tell if a checkpoint has got to the disk. Raises OSError if it could not be written."""
        # Weights that are not finite are told at the next commit: on every rank at the same step.
        if self._writing is not None and self._writing.future.done() and not self.failed:
            self.settle()

    @property
    def failed(self) -> bool:
        """Weights were not finite; the next commit() raises."""
        writing = self._writing
        return writing is not None and writing.future.done() and isinstance(writing.future.exception(), NotFinite)

    def settle(self) -> None:
        """Wait until nothing is being written, and tell. Raises NotFinite or OSError."""
        if self._wait():
            assert self._saved is not None
            self._on_saved(self._saved)

    def forget(self) -> None:
        """Training went back to ``good``: the next commit writes it, though it was written before with other rates."""
        self._saved = None

    def close(self) -> None:
        """Wait for the thread, whatever it comes to."""
        self._thread.shutdown(wait=True)

    def _wait(self) -> bool:
        """True if a checkpoint was on its way, and has arrived."""
        writing, self._writing = self._writing, None
        if writing is None:
            return False
        path, write_s = writing.future.result()
        self._saved = Saved(path, writing.step, writing.position, writing.stall_s, write_s)
        if writing.health is Health.HEALTHY:
            self.good = writing.snapshot
        return True

    def _snapshot(self, health: Health, audit_bytes: tuple[int, ...] | None = None) -> Snapshot:
        if audit_bytes is None:
            audit_bytes = self._audit.commit() if self._audit else ()
        self._state.audit_bytes = audit_bytes
        content = self._state.checkpoint(self._config_json)
        return self._snapshots.take(content | {"health": health.label})

    def _write(self, snapshot: Snapshot, step: int, score: float | None) -> tuple[Path, float]:
        """In the thread."""
        began_s = time.monotonic()
        snapshot.wait()
        wrong = not_finite(snapshot.content["task"])
        if wrong:
            raise NotFinite(f"the weights of step {step} are not finite: {', '.join(wrong[:5])}")
        path = self._checkpoints.save(step, snapshot.content, score)
        return path, time.monotonic() - began_s


@dataclass(frozen=True)
class _Writing:
    """A checkpoint on its way."""

    snapshot: Snapshot
    health: Health
    step: int
    position: StreamPosition
    stall_s: float
    future: Future[tuple[Path, float]]
