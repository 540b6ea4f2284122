"""Snapshot of a run, read from the files of its run directory: `icestream status --json` prints it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.file_lock import RUN_PARTS, Holder, holder_of
from common.run_dir import CONFIG_FILE, open_in_run, shard_dirs
from common.run_words import bottleneck, bottleneck_of_the_hour, remaining_s
from common.status import FetcherStatus, GpuStatus, RunStatus, TrainerStatus
from common.status_files import STATUS_FOLDER, read_fetchers, read_status
from icestream.commands.status.of_nodes import (
    first_node,
    is_shared_folder,
    shared_folder_of,
    state_of_nodes,
    training_of_nodes,
)
from icestream.commands.status.run_state import ALIVE, Occupant, State, state_of
from icestream.commands.status.seen import (
    CheckpointSeen,
    ProcessSeen,
    SnapshotPart,
    newest_seen,
    processes_seen,
    shared_checkpoint,
)

_MOST_HEALTH_BYTES = 1 << 24
_GIB = 1 << 30
_LAG_S = 5.0


class HealthSeen(SnapshotPart):
    """Health of the training."""

    state: str
    """healthy, warning or critical: of the newest steps."""
    reason: str
    """Reason of the newest warning or rollback."""
    rollbacks: int
    unhealthy_steps: int
    """Lines of `health.jsonl`."""


class DiskSeen(SnapshotPart):
    """File system of the run directory, and the cache of remote files."""

    free_bytes: int
    total_bytes: int
    staged_bytes: int
    """Bytes of remote files on local disk."""
    budget_bytes: int
    """`fetcher.disk_budget_gib`. 0: the inputs are local, nothing is staged."""


class RunSnapshot(SnapshotPart):
    """State of a run. Fields are added and never change their meaning; times are in seconds."""

    run_dir: str
    """As given."""
    state: State
    """new, starting, running, stopping, finished, interrupted, failed, killed; unknown: on another host, and silent."""
    reason: str
    """Process that runs it, or the reason of its end."""
    workload: str
    model: str
    inputs: list[str]
    started_s: float | None
    """Start of the newest session, since 1970; null if its services were started one by one."""
    changed_s: float | None
    """Newest sign of life, since 1970."""
    exit_code: int | None
    """Exit code of `icestream run`; null while it runs, and if it was killed."""
    device: str
    step: int
    max_steps: int
    """`trainer.max_steps`. 0: no limit."""
    expected_steps: int | None
    """Estimated number of steps of the whole run; null if it can't be estimated."""
    epoch: int
    """Current epoch, from 0."""
    epochs: int
    """0: without end."""
    trained_s: float
    """Training time of all sessions."""
    eta_s: float | None
    """Time to the end at the present speed; null if it is unknown, or the run is not running."""
    events_trained: int
    events_per_s: float
    """Over the last seconds; 0 if it is not running."""
    particles_per_s: float
    steps_per_s: float
    mean_events_per_s: float
    """Over all of `trained_s`."""
    wait_share: float
    """Part (0 to 1) of the last seconds that the trainer waited for data."""
    copied_bytes_per_s: float
    """Bytes of training data copied to the device per second; 0 if it is not running."""
    flops_per_s: float | None
    """Floating-point operations of matrix products per second; null: not counted, or it is not running."""
    losses: dict[str, float]
    bottleneck: str
    """Bottleneck now, in words; empty if it is not running."""
    bottleneck_hour: str
    """Bottleneck of the last hour before `changed_s`, in words; empty if it is unknown."""
    restarts: dict[str, int]
    """Restarts in the newest session, by service."""
    checkpoint: CheckpointSeen | None
    health: HealthSeen
    gpu: GpuStatus | None
    """null: there is none, or the run is not running."""
    disk: DiskSeen
    token_expires_s: float | None
    """End of the first token to expire, since 1970; null: none is in use, or it has no known end."""
    files: int
    """Files of the known inventory, times the epochs."""
    files_bad: int
    problem: str
    """Problem that stops the fetcher's progress, with the remedy."""
    warnings: tuple[str, ...]
    """About settings without effect, and about values that can't be."""
    processes: list[ProcessSeen]
    nodes: int
    """Number of nodes, if the directory is the folder that they share; else 0. Progress is then as of `summary.json`,
    or of the newest checkpoint, since each node's own directory has its statuses."""
    shared: str
    """Folder with checkpoints and results, if the directory is one node's own; else empty."""

    @property
    def is_alive(self) -> bool:
        """True while the run goes on."""
        return self.state in ALIVE


def is_run_dir(path: Path) -> bool:
    """True for a folder with a run's configuration."""
    return (path / CONFIG_FILE).is_file()


def require_run_dir(run_dir: Path) -> None:
    """Raise BadInputError if there is no run."""
    try:
        is_one = is_run_dir(run_dir)
    except PermissionError:
        raise BadInputError(f"{run_dir}: can't be read by you: it belongs to another user") from None
    if not is_one:
        why = f"it has no {CONFIG_FILE}" if run_dir.is_dir() else "no such folder"
        raise BadInputError(f"{run_dir}: not a run directory ({why}); `icestream ls` lists those in runs/")


def occupant(run_dir: Path) -> Holder | None:
    """Process to which the run belongs: `icestream run`, else a living service, else one that was killed."""
    holders = [holder for part in RUN_PARTS if (holder := holder_of(run_dir, part)) is not None]
    return min(holders, key=lambda holder: holder.is_alive() is False, default=None)


@dataclass(frozen=True)
class RunFiles:
    """State of a run by the files of its directory, at one moment."""

    run_dir: Path
    config: Mapping[str, Any]
    run: RunStatus | None
    fetcher: FetcherStatus | None
    trainer: TrainerStatus | None
    state: State
    reason: str
    now_s: float
    changed_s: float | None
    processes: tuple[ProcessSeen, ...]
    nodes: int = 0
    """See RunSnapshot."""

    @property
    def is_alive(self) -> bool:
        """True while the run goes on."""
        return self.state in ALIVE


def read_run(run_dir: Path) -> RunSnapshot:
    """Snapshot of a run. Nothing is written, and no service notices. Raises BadInputError if there is no run."""
    try:
        found = read_files(run_dir)
        parts = _identity(found) | _progress(found) | _rates(found) | _surroundings(found)
    except OSError as error:  # of another user, who shows the folder but not the files, for example
        raise BadInputError(f"{run_dir}: can't be read: {error}") from None
    return RunSnapshot(**parts, processes=list(found.processes))


def read_files(run_dir: Path) -> RunFiles:
    """Content of the files. Raises BadInputError if there is no run."""
    require_run_dir(run_dir)
    now_s = time.time()
    if is_shared_folder(run_dir):
        return _files_of_nodes(run_dir, now_s)
    run = read_status(run_dir, "run", RunStatus)
    fetcher = read_fetchers(run_dir)
    trainer = read_status(run_dir, "trainer", TrainerStatus)
    changed_s = _changed_s(run_dir, "*")
    here = _occupant_in_words(occupant(run_dir))
    if run is not None and here is None and changed_s is not None and changed_s > run.changed_s + _LAG_S:
        run = None  # services that were started one by one went on later
    reported = trainer
    if run is not None and (_changed_s(run_dir, "trainer") or 0.0) < run.started_s:
        reported = None
    silent_s = now_s - changed_s if changed_s is not None else None
    state, reason = state_of(here, run, reported, silent_s=silent_s)
    processes = processes_seen(run, fetcher, trainer) if here is not None and here.is_alive else ()
    config = _config(run_dir)
    return RunFiles(run_dir, config, run, fetcher, trainer, state, reason, now_s, changed_s, processes)


def _files_of_nodes(shared: Path, now_s: float) -> RunFiles:
    """The same of the folder that several nodes share: their statuses are elsewhere."""
    first, holder = first_node(shared), holder_of(shared, "run")
    if holder is not None and first is not None and (holder.host, holder.pid) != (first.note.host, first.note.pid):
        holder = None  # frozen, while the run went on elsewhere
    state, reason = state_of_nodes(first, _occupant_in_words(holder), now_s)
    config, checkpoint = _config(shared), newest_seen(shared, now_s)
    trainer = training_of_nodes(shared, config, state, checkpoint.step if checkpoint is not None else 0)
    changed_s = first.noted_s if first is not None else None
    nodes = first.note.nodes if first is not None else 1
    return RunFiles(shared, config, None, None, trainer, state, reason, now_s, changed_s, (), nodes)


def _occupant_in_words(holder: Holder | None) -> Occupant | None:
    if holder is None:
        return None
    return Occupant(f"{holder.what}, process {holder.pid} on {holder.host}", holder.is_alive())


def _identity(found: RunFiles) -> dict[str, Any]:
    run, config = found.run, found.config
    return {
        "run_dir": str(found.run_dir),
        "state": found.state,
        "reason": found.reason,
        "workload": str(config.get("workload", "")),
        "model": str(_section(config, "trainer").get("model", "")),
        "inputs": _inputs(config),
        "started_s": run.started_s if run is not None else None,
        "changed_s": found.changed_s,
        "exit_code": run.exit_code if run is not None else None,
        "restarts": {name: number for name, number in run.restarts.items() if number} if run is not None else {},
        "nodes": found.nodes,
        "shared": shared_folder_of(found.run_dir),
    }


def _progress(found: RunFiles) -> dict[str, Any]:
    trainer = found.trainer or TrainerStatus()
    eta_s = remaining_s(found.fetcher, found.trainer) if found.is_alive else None
    trained = trainer.counters.events_trained
    return {
        "device": trainer.device,
        "step": trainer.step,
        "max_steps": trainer.max_steps,
        "expected_steps": _expected_steps(trainer, eta_s),
        "epoch": trainer.epoch,
        "epochs": trainer.epochs,
        "trained_s": trainer.seconds,
        "eta_s": eta_s,
        "events_trained": trained,
        "mean_events_per_s": trained / trainer.seconds if trainer.seconds > 0 else 0.0,
        "losses": trainer.losses,
        "checkpoint": newest_seen(found.run_dir, found.now_s) or shared_checkpoint(found.run_dir, found.now_s),
        "health": HealthSeen(
            state=trainer.health,
            reason=trainer.health_reason,
            rollbacks=trainer.rollbacks,
            unhealthy_steps=_lines(found.run_dir / "health.jsonl"),
        ),
        "warnings": trainer.warnings,
    }


def _rates(found: RunFiles) -> dict[str, Any]:
    """Numbers of this moment: those of a run that is not alive would mislead."""
    trainer = (found.trainer if found.is_alive else None) or TrainerStatus()
    now = bottleneck(found.fetcher, found.trainer) if found.is_alive and found.fetcher is not None else ""
    return {
        "events_per_s": trainer.events_per_s,
        "particles_per_s": trainer.particles_per_s,
        "steps_per_s": trainer.batches_per_s,
        "wait_share": trainer.wait_fraction,
        "copied_bytes_per_s": trainer.copied_bytes_per_s,
        "flops_per_s": trainer.flops_per_s,
        "gpu": trainer.gpu,
        "bottleneck": now,
        "bottleneck_hour": bottleneck_of_the_hour(found.fetcher, found.trainer),
    }


def _surroundings(found: RunFiles) -> dict[str, Any]:
    fetcher = found.fetcher or FetcherStatus()
    usage = shutil.disk_usage(found.run_dir)
    budget_gib = _section(found.config, "fetcher").get("disk_budget_gib", 0)
    is_remote = any("://" in text for text in _inputs(found.config))
    return {
        "disk": DiskSeen(
            free_bytes=usage.free,
            total_bytes=usage.total,
            staged_bytes=fetcher.bytes_staged,
            budget_bytes=int(budget_gib * _GIB) if is_remote and isinstance(budget_gib, int | float) else 0,
        ),
        "token_expires_s": fetcher.token_expires_s,
        "files": fetcher.files_total,
        "files_bad": fetcher.files_bad,
        "problem": fetcher.problem if found.is_alive else "",
    }


def _inputs(config: Mapping[str, Any]) -> list[str]:
    inputs = config.get("input")
    return [text for text in inputs if isinstance(text, str)] if isinstance(inputs, list) else []


def _expected_steps(trainer: TrainerStatus, eta_s: float | None) -> int | None:
    if trainer.state == "finished":
        return trainer.step
    if eta_s is None or trainer.batches_per_s <= 0:
        return trainer.max_steps or None
    steps = trainer.step + round(eta_s * trainer.batches_per_s)
    return min(steps, trainer.max_steps) if trainer.max_steps else steps


def _section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _config(run_dir: Path) -> dict[str, Any]:
    """Stored configuration, of whatever version; empty if it is damaged."""
    try:
        with open_in_run(run_dir / CONFIG_FILE) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed_s(run_dir: Path, name: str) -> float | None:
    """Time of the newest of the status files with this name (a pattern), those of shards included."""
    folders = {run_dir, *shard_dirs(run_dir)}
    times = [path.stat().st_mtime for folder in folders for path in (folder / STATUS_FOLDER).glob(f"{name}.json")]
    return max(times, default=None)


def _lines(path: Path) -> int:
    try:
        with open_in_run(path) as file:
            return file.read(_MOST_HEALTH_BYTES).count(b"\n")
    except FileNotFoundError:
        return 0
