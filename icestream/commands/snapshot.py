"""Snapshot of a run, read from the files of its directory: `icestream status --json` prints it.

Nothing is written, and no service notices. The files may be another user's, of another version, or damaged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import BadInputError
from common.locks import RUN_PARTS, Holder, holder_of
from common.paths import CONFIG_FILE, NODE_FILE, RUN_ID_FILE, open_in_run, shard_dirs
from common.run_words import bottleneck, bottleneck_of_the_hour, done_share, expected_steps, remaining_s
from common.status import (
    STATUS_FOLDER,
    Counters,
    EventCounts,
    FetcherStatus,
    GpuStatus,
    RunStatus,
    TrainerStatus,
    read_fetchers,
    read_status,
)
from common.summary import SUMMARY_FILE, Summary
from common.text import duration
from services.supervisor.meeting import NODES_FOLDER, NodeNote
from services.supervisor.supervisor import INTERRUPTED_EXIT_CODE

State = Literal["new", "starting", "running", "stopping", "finished", "interrupted", "failed", "killed", "unknown"]
ALIVE: tuple[State, ...] = ("starting", "running", "stopping")
SILENT_S = 60.0
"""Age of the newest status from which a run that can't be seen from here is not said to run."""
_END: dict[str, State] = {"finished": "finished", "stopped": "interrupted"}
_AT_END = {state: word for word, state in _END.items()}
_MOST_BYTES = 1 << 20
_MOST_HEALTH_BYTES = 1 << 24
_GIB = 1 << 30
_OF_TRAINER = ("device", "step", "max_steps", "epoch", "epochs", "losses", "warnings")
"""Fields of a snapshot that are those of the trainer's status, under the same names."""
_LAG_S = 5.0
"""Services write their last status later than `icestream run` its own, by no more than this."""
_CHECKPOINT = re.compile(r"step-(\d{9,})\.(pt|json)")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class CheckpointSeen(_Part):
    """Newest checkpoint."""

    path: str
    step: int
    written_s: float
    age_s: float


class ProcessSeen(_Part):
    """Living process of the run."""

    name: str
    pid: int
    memory_bytes: int | None


class HealthSeen(_Part):
    """Health of the training."""

    state: str
    reason: str
    rollbacks: int
    unhealthy_steps: int


class DiskSeen(_Part):
    """File system of the run directory, and the cache of remote files."""

    free_bytes: int
    total_bytes: int
    staged_bytes: int
    budget_bytes: int


class RunSnapshot(_Part):
    """State of a run: docs/reference/status.md says what each field means, here and in the parts.

    Fields are added and never change their meaning; times are in seconds.
    """

    run_dir: str
    state: State
    reason: str
    workload: str
    model: str
    inputs: list[str]
    started_s: float | None
    changed_s: float | None
    exit_code: int | None
    device: str
    step: int
    max_steps: int
    expected_steps: int | None
    epoch: int
    epochs: int
    trained_s: float
    eta_s: float | None
    events_read: int
    events_trained: int
    events_per_s: float
    particles_per_s: float
    steps_per_s: float
    mean_events_per_s: float
    wait_share: float
    copied_bytes_per_s: float
    losses: dict[str, float]
    bottleneck: str
    bottleneck_hour: str
    restarts: dict[str, int]
    checkpoint: CheckpointSeen | None
    health: HealthSeen
    gpu: GpuStatus | None
    disk: DiskSeen
    token_expires_s: float | None
    files: int
    files_bad: int
    problem: str
    warnings: tuple[str, ...]
    processes: list[ProcessSeen]
    nodes: int
    shared: str

    @property
    def is_alive(self) -> bool:
        """True while the run goes on."""
        return self.state in ALIVE


def is_run_dir(path: Path) -> bool:
    """Return True for a folder with a run's configuration."""
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
    """Return the process to which the run belongs: `icestream run`, else a living service, else one that was killed."""
    holders = [holder for part in RUN_PARTS if (holder := holder_of(run_dir, part)) is not None]
    return min(holders, key=lambda holder: holder.is_alive() is False, default=None)


def read_run(run_dir: Path) -> RunSnapshot:
    """Return a snapshot of a run. Raises BadInputError if there is none, or if it can't be read."""
    require_run_dir(run_dir)
    try:
        return _of_nodes(run_dir, time.time()) if is_shared_folder(run_dir) else _of_one(run_dir, time.time())
    except OSError as error:  # of another user, who shows the folder but not the files, for example
        raise BadInputError(f"{run_dir}: can't be read: {error}") from None


def _of_one(run_dir: Path, now_s: float) -> RunSnapshot:
    """Return the snapshot of a run directory, of `icestream run`, of services or of one node."""
    run = read_status(run_dir, "run", RunStatus)
    fetcher = read_fetchers(run_dir)
    trainer = read_status(run_dir, "trainer", TrainerStatus)
    changed_s = _changed_s(run_dir, "*")
    here = occupant(run_dir)
    if run is not None and here is None and changed_s is not None and changed_s > run.changed_s + _LAG_S:
        run = None  # services that were started one by one went on later
    reported = trainer
    if run is not None and (_changed_s(run_dir, "trainer") or 0.0) < run.started_s:
        reported = None
    silent_s = now_s - changed_s if changed_s is not None else None
    state = state_of(here, run, reported, silent_s=silent_s)
    processes = _processes(run, fetcher, trainer) if here is not None and here.is_alive() else []
    return _snapshot(run_dir, state, run, fetcher, trainer, now_s=now_s, changed_s=changed_s, processes=processes)


def _of_nodes(shared: Path, now_s: float) -> RunSnapshot:
    """Return the snapshot of the folder that several nodes share: their statuses are elsewhere."""
    first, holder = first_node(shared), holder_of(shared, "run")
    if first is None:
        trainer = _training_of_nodes(shared, "new", now_s)
        return _snapshot(shared, ("new", "no node has started yet"), None, None, trainer, now_s=now_s, nodes=1)
    note, noted_s = first
    if holder is not None and (holder.host, holder.pid) != (note.host, note.pid):
        holder = None  # frozen, while the run went on elsewhere
    state = _state_of_nodes(note, now_s - noted_s, holder)
    trainer = _training_of_nodes(shared, state[0], now_s)
    return _snapshot(shared, state, None, None, trainer, now_s=now_s, changed_s=noted_s, nodes=note.nodes)


def _snapshot(
    run_dir: Path,
    state: tuple[State, str],
    run: RunStatus | None,
    fetcher: FetcherStatus | None,
    trainer: TrainerStatus | None,
    *,
    now_s: float,
    changed_s: float | None = None,
    processes: list[ProcessSeen] | None = None,
    nodes: int = 0,
) -> RunSnapshot:
    config, is_alive, usage = _object(run_dir / CONFIG_FILE), state[0] in ALIVE, shutil.disk_usage(run_dir)
    stored = config.get("input")
    inputs = [text for text in stored if isinstance(text, str)] if isinstance(stored, list) else []
    budget_gib = _section(config, "fetcher").get("disk_budget_gib", 0)
    is_staged = any("://" in text for text in inputs) and isinstance(budget_gib, int | float)
    eta_s = remaining_s(fetcher, trainer) if is_alive else None
    shared = _object(run_dir / NODE_FILE).get("shared")
    shared = shared if isinstance(shared, str) else ""  # of one of several nodes
    hour = bottleneck_of_the_hour(fetcher, trainer)
    stage = bottleneck(fetcher, trainer) if is_alive and fetcher is not None else ""
    known, files = trainer or TrainerStatus(), fetcher or FetcherStatus()
    unhealthy_steps = 0
    with suppress(FileNotFoundError), open_in_run(run_dir / "health.jsonl") as log:
        unhealthy_steps = log.read(_MOST_HEALTH_BYTES).count(b"\n")
    now = known if is_alive else TrainerStatus()  # rates of a run that is not alive would mislead
    trained = known.counters.events_trained
    return RunSnapshot(
        run_dir=str(run_dir),
        state=state[0],
        reason=state[1],
        workload=str(config.get("workload", "")),
        model=str(_section(config, "trainer").get("model", "")),
        inputs=inputs,
        started_s=run.started_s if run is not None else None,
        changed_s=changed_s,
        exit_code=run.exit_code if run is not None else None,
        **{name: getattr(known, name) for name in _OF_TRAINER},
        **{name: getattr(now, name) for name in ("events_per_s", "particles_per_s", "gpu")},
        expected_steps=expected_steps(known, done_share(fetcher, trainer)),
        events_read=known.counters.events_read,
        trained_s=known.seconds,
        eta_s=eta_s,
        events_trained=trained,
        steps_per_s=now.batches_per_s,
        mean_events_per_s=trained / known.seconds if known.seconds > 0 else 0.0,
        wait_share=now.wait_fraction,
        copied_bytes_per_s=now.copied_bytes_per_s,
        bottleneck=stage,
        bottleneck_hour=hour,
        restarts={name: number for name, number in run.restarts.items() if number} if run is not None else {},
        checkpoint=newest_seen(run_dir, now_s) or _shared_checkpoint(shared, now_s),
        health=HealthSeen(
            state=known.health, reason=known.health_reason, rollbacks=known.rollbacks, unhealthy_steps=unhealthy_steps
        ),
        disk=DiskSeen(
            free_bytes=usage.free,
            total_bytes=usage.total,
            staged_bytes=files.bytes_staged,
            budget_bytes=int(budget_gib * _GIB) if is_staged else 0,
        ),
        token_expires_s=files.token_expires_s,
        files=files.files_total // max(1, files.epochs),
        files_bad=files.files_bad,
        problem=files.problem if is_alive else "",
        processes=processes or [],
        nodes=nodes,
        shared=shared,
    )


# ------------------------------------------------------------------ state


def state_of(
    occupant: Holder | None, run: RunStatus | None, trainer: TrainerStatus | None, *, silent_s: float | None
) -> tuple[State, str]:
    """Return the state of a run and its reason. Pure.

    ``trainer``: None if it has not reported in this session. ``silent_s``: age of the newest status; None without one.
    """
    if occupant is not None and occupant.is_alive() is False:
        return "killed", f"{occupant.who}, is gone and recorded no end: it was killed, or its machine went down"
    if occupant is not None:
        if occupant.is_alive() is None and (silent_s is None or silent_s > SILENT_S):
            age = f" for {duration(silent_s)}" if silent_s is not None else ""
            return "unknown", f"no sign of life{age} from {occupant.who}; it can't be seen from here"
        if (run is not None and run.state == "stopping") or (trainer is not None and trainer.state in _END):
            return "stopping", occupant.who
        if trainer is None or trainer.state == "starting":
            return "starting", occupant.who
        return "running", occupant.who
    if run is not None and run.state not in ("running", "stopping"):
        return run.state, run.error
    if run is not None:
        return "killed", "`icestream run` recorded no end: its machine went down, or its disk was full"
    if trainer is None:
        return "new", "no service has reported yet"
    if trainer.state in _END:
        return _END[trainer.state], ""
    return "unknown", f"the trainer's last state was {trainer.state!r}"


def _state_of_nodes(note: NodeNote, silent_s: float, occupant: Holder | None) -> tuple[State, str]:
    """Return the state of a run by the note of node 0, and its reason. ``occupant``: of the shared folder's lock."""
    who = f"{note}, of {note.nodes}"
    if note.state == "ended":
        ends: dict[int, State] = {0: "finished", INTERRUPTED_EXIT_CODE: "interrupted"}
        return ends.get(note.exit_code, "failed"), note.text
    if occupant is not None and occupant.is_alive() is False:
        return "killed", f"{who}, is gone and recorded no end: it was killed, or its machine went down"
    if silent_s > SILENT_S:
        return "unknown", f"no sign of life for {duration(silent_s)} from {who}"
    where = f"{who}; progress: `icestream status {note.run_dir}` on {note.host}"
    return ("running" if note.state == "running" else "starting"), where


# ------------------------------------------------------------------ several nodes


def is_shared_folder(run_dir: Path) -> bool:
    """Return True for the folder that the nodes of a run share."""
    return (run_dir / RUN_ID_FILE).is_file()


def first_node(shared: Path) -> tuple[NodeNote, float] | None:
    """Return the note of node 0 of the newest start, and its time since 1970; None before the first start."""
    path = shared / NODES_FOLDER / "0"
    try:
        return NodeNote.model_validate_json(_content(path)), path.stat().st_mtime
    except (OSError, ValidationError, BadInputError):
        return None


def _training_of_nodes(shared: Path, state: State, now_s: float) -> TrainerStatus:
    """Return the progress by the shared folder: its summary, else no more than the step of the newest checkpoint."""
    config, checkpoint = _object(shared / CONFIG_FILE), newest_seen(shared, now_s)
    max_steps, epochs = _section(config, "trainer").get("max_steps"), config.get("epochs")
    known = TrainerStatus(
        step=checkpoint.step if checkpoint is not None else 0,
        max_steps=max_steps if isinstance(max_steps, int) else 0,
        epochs=epochs if isinstance(epochs, int) else 0,
    )
    try:
        summary = Summary.model_validate_json(_content(shared / SUMMARY_FILE))
    except (OSError, ValidationError, BadInputError):
        return known
    if state not in _AT_END or summary.exit_status != state:
        return known
    counters = {name: getattr(summary, name) for name in EventCounts.model_fields}
    return known.model_copy(
        update={
            "state": _AT_END[state],
            "step": summary.steps,
            "epoch": max(0, summary.epochs - 1),
            "seconds": summary.seconds_total,
            "counters": Counters(**counters),
            "warnings": tuple(summary.warnings),
        }
    )


# ------------------------------------------------------------------ files


def newest_seen(run_dir: Path, now_s: float) -> CheckpointSeen | None:
    """Return the newest checkpoint in the run directory; None before the first."""
    names = [path.name for path in (run_dir / "checkpoints").glob("step-*")]
    steps = {int(match[1]): f"checkpoints/{match[0]}" for name in names if (match := _CHECKPOINT.fullmatch(name))}
    if not steps:
        return None
    step = max(steps)
    try:
        written_s = (run_dir / steps[step]).stat().st_mtime
    except FileNotFoundError:  # replaced by a newer one in this moment
        return newest_seen(run_dir, now_s)
    return CheckpointSeen(path=steps[step], step=step, written_s=written_s, age_s=max(0.0, now_s - written_s))


def _shared_checkpoint(shared: str, now_s: float) -> CheckpointSeen | None:
    """Return the newest checkpoint in the folder that a node shares with others; None without such a folder."""
    try:
        seen = newest_seen(Path(shared), now_s) if shared else None
    except OSError:  # not this user's, or not mounted here
        return None
    return seen and seen.model_copy(update={"path": str(Path(shared, seen.path))})


def _processes(
    run: RunStatus | None, fetcher: FetcherStatus | None, trainer: TrainerStatus | None
) -> list[ProcessSeen]:
    """Return the living processes, with their memory, by what the services have reported."""
    named: dict[str, int] = {}
    if run is not None:
        named = {"run": run.pid, **run.processes}
    else:
        named |= {"fetcher": fetcher.pid} if fetcher is not None else {}
        named |= {"trainer": trainer.pid} if trainer is not None else {}
    others = fetcher.decoder_pids if fetcher is not None else ()
    joined = [("decoder", pid) for pid in others if pid and pid not in named.values()]
    seen = []
    for name, pid in (*named.items(), *joined):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
        seen.append(ProcessSeen(name=name, pid=pid, memory_bytes=pages * os.sysconf("SC_PAGE_SIZE")))
    return seen


def _object(path: Path) -> dict[str, Any]:
    """Return a file's JSON, of whatever version; empty if it is damaged."""
    try:
        content = json.loads(_content(path))
    except (OSError, ValueError, BadInputError):
        return {}
    return content if isinstance(content, dict) else {}


def _section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _changed_s(run_dir: Path, name: str) -> float | None:
    """Return the time of the newest of the status files with this name (a pattern), those of shards included."""
    folders = {run_dir, *shard_dirs(run_dir)}
    times = [path.stat().st_mtime for folder in folders for path in (folder / STATUS_FOLDER).glob(f"{name}.json")]
    return max(times, default=None)


def _content(path: Path) -> bytes:
    """Return the beginning of a file. Raises OSError, and BadInputError for no regular file."""
    with open_in_run(path) as file:
        return file.read(_MOST_BYTES)
