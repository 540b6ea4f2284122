"""Parts of a snapshot that are no status file's: the newest checkpoint, and the living processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from common.status import FetcherStatus, RunStatus, TrainerStatus
from icestream.commands.status.of_nodes import shared_folder_of

_CHECKPOINT = re.compile(r"step-(\d{9,})\.(pt|json)")


class SnapshotPart(BaseModel):
    """Part of a snapshot."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class CheckpointSeen(SnapshotPart):
    """Newest checkpoint."""

    path: str
    """Relative to the run directory; absolute in one node's own."""
    step: int
    written_s: float
    """Seconds since 1970."""
    age_s: float


class ProcessSeen(SnapshotPart):
    """Living process of the run."""

    name: str
    pid: int
    memory_bytes: int | None
    """Resident memory; null if the process can't be seen from here."""


def newest_seen(run_dir: Path, now_s: float) -> CheckpointSeen | None:
    """Newest checkpoint in the run directory; None before the first."""
    found = [
        (int(match[1]), path)
        for path in (run_dir / "checkpoints").glob("step-*")
        if (match := _CHECKPOINT.fullmatch(path.name))
    ]
    if not found:
        return None
    step, path = max(found)
    try:
        written_s = path.stat().st_mtime
    except FileNotFoundError:  # replaced by a newer one in this moment
        return newest_seen(run_dir, now_s)
    name = str(path.relative_to(run_dir))
    return CheckpointSeen(path=name, step=step, written_s=written_s, age_s=max(0.0, now_s - written_s))


def shared_checkpoint(run_dir: Path, now_s: float) -> CheckpointSeen | None:
    """Newest checkpoint of a node's run, in the folder that the nodes share; None in any other directory."""
    if not (shared := shared_folder_of(run_dir)):
        return None
    try:
        seen = newest_seen(Path(shared), now_s)
    except OSError:  # not this user's, or not mounted here
        return None
    return seen and seen.model_copy(update={"path": str(Path(shared, seen.path))})


def processes_seen(
    run: RunStatus | None, fetcher: FetcherStatus | None, trainer: TrainerStatus | None
) -> tuple[ProcessSeen, ...]:
    """Living processes by what the services have reported."""
    named: dict[str, int] = {}
    if run is not None:
        named = {"run": run.pid, **run.processes}
    else:
        named |= {"fetcher": fetcher.pid} if fetcher is not None else {}
        named |= {"trainer": trainer.pid} if trainer is not None else {}
    others = fetcher.decoder_pids if fetcher is not None else ()
    joined = [pid for pid in others if pid and pid not in named.values()]
    return (*_seen(named.items()), *_seen(("decoder", pid) for pid in joined))


def _seen(named: Iterable[tuple[str, int]]) -> list[ProcessSeen]:
    """Processes that exist, with their memory."""
    found = []
    for name, pid in named:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
        found.append(ProcessSeen(name=name, pid=pid, memory_bytes=pages * os.sysconf("SC_PAGE_SIZE")))
    return found
