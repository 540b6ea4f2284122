"""Commits of a run: its checkpoint files, when one is written in the background, what is reported, and the way back.

They are in the folder `checkpoints/` of a run, of one trainer at a time; each file is complete or absent. A commit:
request or step → turn() → snapshot → file on disk → position reported → files behind it evicted.
Three rules hold for any order of steps, requests, failures and stops:

- Only a position on disk is reported.
- One checkpoint at a time is being written; the next one waits for it.
- A request is answered by a checkpoint begun after it: one that was being written already is not reported in its place.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from common.atomic_file import replacing, sync_folder
from common.errors import BadInputError
from common.locks import RunAttempt, RunLock, patience, publishing_of
from common.transport import StopRequested
from services.trainer.audit import Audit
from services.trainer.feed import Feed
from services.trainer.health import Guard, Health, NotFinite, Unhealthy
from services.trainer.position import StreamPosition
from services.trainer.state import TrainState
from services.trainer.telemetry import Telemetry
from workloads.base.checkpoint import BEST, CHECKPOINT_FOLDER, FORMAT, STEP_NAME, UnreadableError, read_checkpoint

logger = logging.getLogger(__name__)


def checkpoint_folder(run_dir: Path, attempt: RunAttempt | None) -> Path:
    """Folder of a run's checkpoints: in the run directory, or in the folder that its nodes share."""
    return (run_dir if attempt is None else attempt.shared) / CHECKPOINT_FOLDER


class Checkpoints:
    """The checkpoints of a run, of which the newest ``keep`` and the best stay. One trainer at a time, by a lock."""

    def __init__(
        self, run_dir: Path, keep: int, *, wait_s: float, stopped: Callable[[], bool], attempt: RunAttempt | None = None
    ) -> None:
        """Wait for a trainer that is just ending (it may be writing the newest checkpoint).

        Of several nodes they are in the folder that these share, and a later ``attempt`` waits for nobody: a trainer
        of an older one may be frozen, and publishes nothing more.

        Raises BadInputError if it doesn't end within ``wait_s``, StopRequested once ``stopped()`` is true.
        """
        self._folder = checkpoint_folder(run_dir, attempt)
        self._keep = keep
        self._attempt = attempt
        self._publishing = publishing_of(attempt)
        """Context of every change of the folder."""
        self._best_score: float | None = None
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
            return paths[0], read_checkpoint(paths[0])
        except UnreadableError as error:
            raise BadInputError(f"{error}; delete it to resume from the one before") from None

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Write a checkpoint atomically; it is on disk on return.

        Checkpoints of later steps are deleted: training was rolled back. With the lowest ``score`` so far it is
        `best.pt`, too. Raises OSError (ENOSPC), and OutdatedAttemptError; the former checkpoints are untouched then.
        """
        path = self._path(step)
        with replacing(path, durable=True, part=self._part_of(path), publishing=self._publishing) as part:
            try:
                with part.open("wb") as file:
                    torch.save({"format": FORMAT, **state, "score": score}, file)
            except RuntimeError:
                # torch's writer turns a full disk into a RuntimeError without an errno.
                if shutil.disk_usage(self._folder).free < 1 << 20:
                    raise OSError(28, os.strerror(28), str(path)) from None
                raise
        with self._publishing():
            newest_first = self._all()
            num_later = newest_first.index(path)
            for needless in (*newest_first[:num_later], *newest_first[num_later + self._keep :]):
                needless.unlink()
        if score is not None and math.isfinite(score) and score < self._score_of_best():
            self._link_best(path)
            self._best_score = score
        return path

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}.pt"

    def _part_of(self, path: Path) -> Path:
        """Name of a file until it is complete; each attempt has its own, since one that woke up may still write."""
        return path.with_suffix(f".{self._attempt.number}.part" if self._attempt is not None else ".part")

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

    def _all(self) -> list[Path]:
        """All checkpoints, newest first."""
        return sorted((path for path in self._folder.iterdir() if STEP_NAME.fullmatch(path.name)), reverse=True)


class FollowedCheckpoints(Checkpoints):
    """Checkpoints of a rank that is not the first: the first one writes for all, and reports when one is on disk."""

    def __init__(self, run_dir: Path, attempt: RunAttempt | None = None) -> None:
        self._folder = checkpoint_folder(run_dir, attempt)

    def close(self) -> None:
        """Nothing to release."""

    def save(self, step: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Path at which the first rank writes it."""
        return self._path(step)


class Snapshot:
    """Content of a future checkpoint. ``content`` is complete after wait()."""

    def __init__(self, content: dict[str, Any], copied: torch.cuda.Event | None = None) -> None:
        self.content = content
        self._copied = copied

    @classmethod
    def of(cls, content: dict[str, Any], stream: torch.cuda.Stream | None) -> Self:
        """Snapshot of ``content``. ``stream``: one of its device for the transfers; None on a CPU.

        On CUDA the host doesn't wait: the training stream copies everything on the device, and a separate stream
        transfers the copy into page-locked memory while the next step runs.
        """
        on_device: list[tuple[Tensor, Tensor]] = []

        def to_host(tensor: Tensor) -> Tensor:
            still = tensor.detach().clone()
            if still.device.type != "cuda":
                return still
            host = torch.empty(still.shape, dtype=still.dtype, pin_memory=True)
            on_device.append((host, still))
            return host

        copied = _with_tensors(content, to_host)
        if not on_device or stream is None:
            return cls(copied)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for host, still in on_device:
                host.copy_(still, non_blocking=True)
                still.record_stream(stream)
            event = torch.cuda.Event()
            event.record(stream)
        return cls(copied, event)

    def wait(self) -> None:
        """Wait for the copies from the device."""
        if self._copied is not None:
            self._copied.synchronize()

    def restorable(self) -> dict[str, Any]:
        """Copy of the content: the restored objects may be changed in place."""
        self.wait()
        content: dict[str, Any] = _with_tensors(self.content, lambda tensor: tensor.clone())
        return content


def not_finite(content: object) -> list[str]:
    """Names of the arrays with a number that is not finite. Scalars may have any value: they are measurements, no
    weights."""
    return [
        name
        for name, tensor in _tensors(content)
        if tensor.dim() > 0 and tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Copy of nested dicts, lists and tuples, with other tensors."""
    match value:
        case Tensor():
            return change(value)
        case dict():
            new = copy.copy(value)  # an OrderedDict of torch has attributes
            for key, inner in value.items():
                new[key] = _with_tensors(inner, change)
            return new
        case list():
            return [_with_tensors(inner, change) for inner in value]
        case tuple():
            return tuple(_with_tensors(inner, change) for inner in value)
        case _:
            return value


def _tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    match value:
        case Tensor():
            yield name, value
        case dict():
            for key, inner in value.items():
                yield from _tensors(inner, f"{name}.{key}" if name else str(key))
        case list() | tuple():
            for index, inner in enumerate(value):
                yield from _tensors(inner, f"{name}.{index}")


@dataclass(frozen=True)
class _Commit:
    """A snapshot that is being written to disk, or is there."""

    step: int
    position: StreamPosition
    snapshot: Snapshot
    health: Health
    stall_s: float
    """Time for which the loop was blocked."""
    future: Future[tuple[Path, float]]
    """The file, and the seconds that it took."""


@dataclass(eq=False)
class Commits:
    """Commits of one trainer process; all calls come from the loop's thread."""

    _state: TrainState
    _checkpoints: Checkpoints
    _guard: Guard
    _telemetry: Telemetry
    _audit: Audit | None
    _feed: Feed
    _config_json: str
    _every: int
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        device = self._state.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: _Commit | None = None
        self._saved: _Commit | None = None
        self.good = self._snapshot(Health.HEALTHY, self._audit_bytes())
        """State to which training rolls back: the start of this process, then the newest healthy checkpoint on disk."""

    def turn(self, *, stepped: bool = False, ending: bool = False, again: bool = False) -> None:
        """Carry out the acts that are due; called once a step, and repeatedly while the feed waits for data.

        ``again``: write a checkpoint of the same step anew, as it has a score now.

        With ``ending`` all is on disk and reported on return. Raises OSError, and Unhealthy if the weights can't be
        saved, or one of the last steps is critical: its weights are no target for a rollback.
        """
        began_s, writing = time.monotonic(), self._writing
        asked = self._feed.agreement.take_commit_request()
        if not (asked or ending or (stepped and self._state.step % self._every == 0)):
            if writing is not None and writing.future.done():
                # Weights that were refused are raised by a commit that is due, since all ranks have to meet it between
                # the same two steps. Without data no step would come whose commit it could be.
                if not isinstance(writing.future.exception(), NotFinite):
                    self._settle()
                    self._report()
                elif not stepped:
                    self._feed.agreement.want_commit()
            return
        newest = writing or self._saved
        is_new = again or newest is None or (newest.step, newest.position) != (self._state.step, self._state.position)
        if is_new:
            self._guard.look()
        if writing is not None:
            self._settle()
            if is_new and not asked:
                self._report()  # else steps that are quicker than the disk would leave all but the last unreported
        if is_new:
            self._begin(began_s, self._guard.take_worst(), self._telemetry.newest_score(), self._audit_bytes())
            if ending:
                self._settle()
        if ending or not is_new:
            self._report()

    def roll_back(self, unhealthy: Unhealthy) -> None:
        """Roll the training back to the last good checkpoint, weights and stream, with lower learning rates.

        It is saved at once, so that a restart uses the lower rates as well. The caller restarts the feed at the new
        position. Raises BadInputError once the allowed rollbacks are used up.
        """
        if self._writing is not None:
            with suppress(NotFinite):  # a checkpoint being written may be a good one
                self._settle()
                self._report()
        state, guard = self._state, self._guard
        watch, limits, log = guard.watch, guard.watch.limits, guard.log
        good = self.good.restorable()
        if not watch.may_roll_back:
            for fault in unhealthy.faults:
                log.write(*fault, "stopped")
            raise BadInputError(
                f"training diverged: {unhealthy}. Going back {watch.rollbacks} time(s) did not help; the newest good "
                f"checkpoint is that of step {good['step']}. {log.path} names the batches at fault. Lower the "
                "learning rates, or look at that data"
            )
        factor = limits.learning_rate_factor
        for fault in unhealthy.faults:
            log.write(*fault, f"went back to step {good['step']}, learning rates times {factor:g}")
        logger.error(
            "training: %s. It goes back to step %d, with learning rates times %g (%d of %d times); see %s",
            unhealthy,
            good["step"],
            factor,
            watch.rollbacks + 1,
            limits.rollbacks,
            log.path,
        )
        seconds, rollbacks = state.seconds, watch.rollbacks
        state.restore(good)
        state.seconds = seconds  # training time is not rolled back
        watch.rollbacks = rollbacks
        watch.rolled_back(state.step)
        state.task.scale_learning_rates(factor)
        guard.begin_again()
        # On disk first: a restart from a later checkpoint would miss the lines that are cut off.
        self.replace()
        if self._audit is not None:
            self._audit.cut(state.audit_bytes)

    def replace(self) -> None:
        """Save the state after a rollback, though the same step may be on disk with other rates. On disk on return.

        The audit will be cut at its size there.
        """
        self._begin(time.monotonic(), Health.HEALTHY, None, self._state.audit_bytes)
        self._settle()
        self._report()

    def close(self) -> None:
        """Wait for the thread, whatever its outcome."""
        self._thread.shutdown(wait=True)

    def _audit_bytes(self) -> dict[str, int]:
        """Return the sizes of all audits, which are on disk then."""
        return self._audit.commit() if self._audit else {}

    def _snapshot(self, health: Health, audit_bytes: dict[str, int]) -> Snapshot:
        self._state.audit_bytes = audit_bytes
        return Snapshot.of(self._state.checkpoint(self._config_json) | {"health": health.label}, self._stream)

    def _begin(self, began_s: float, health: Health, score: float | None, audit_bytes: dict[str, int]) -> None:
        assert self._writing is None
        snapshot = self._snapshot(health, audit_bytes)
        stall_s = time.monotonic() - began_s
        future = self._thread.submit(_written, self._checkpoints, self._state.step, snapshot, score)
        self._writing = _Commit(self._state.step, self._state.position, snapshot, health, stall_s, future)

    def _settle(self) -> None:
        written, self._writing = self._writing, None
        assert written is not None
        written.future.result()
        self._saved = written
        if written.health is Health.HEALTHY:
            self.good = written.snapshot

    def _report(self) -> None:
        assert self._saved is not None
        saved, (path, write_s) = self._saved, self._saved.future.result()
        self._telemetry.checkpointed(path, saved.step)
        self._telemetry.note(saved.step, {"checkpoint/stall_s": saved.stall_s, "checkpoint/write_s": write_s})
        self._feed.committed(saved.position)  # only now may files behind the cursor be evicted


def _written(checkpoints: Checkpoints, step: int, snapshot: Snapshot, score: float | None) -> tuple[Path, float]:
    """Write a snapshot, in a thread of its own; it is on disk on return. Raises NotFinite, or OSError."""
    began_s = time.monotonic()
    snapshot.wait()
    if wrong := not_finite(snapshot.content["task"]):
        raise NotFinite(f"the weights of step {step} are not finite: {', '.join(wrong[:5])}")
    return checkpoints.save(step, snapshot.content, score), time.monotonic() - began_s
