"""Run of several nodes, as the folder that they share shows it, and one node's own run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from common.durations import duration
from common.errors import BadInputError
from common.run_dir import NODE_FILE, RUN_ID_FILE, open_in_run
from common.status import Counters, TrainerStatus
from common.summary import SUMMARY_FILE, Summary
from icestream.commands.status.run_state import SILENT_S, Occupant, State
from services.supervisor.nodes.node_watch import INTERRUPTED_EXIT_CODE
from services.supervisor.nodes.note import NodeNote
from services.supervisor.nodes.notes import NODES_FOLDER

_MOST_BYTES = 1 << 20
_AT_END = {"finished": "finished", "interrupted": "stopped"}


@dataclass(frozen=True)
class FirstNode:
    """Node 0 of the newest start, by its note."""

    note: NodeNote
    noted_s: float
    """Time of the note, since 1970."""


def is_shared_folder(run_dir: Path) -> bool:
    """True for the folder that the nodes of a run share."""
    return (run_dir / RUN_ID_FILE).is_file()


def shared_folder_of(run_dir: Path) -> str:
    """Folder that the nodes of the run share, if the directory is one node's own; else empty."""
    try:
        shared = json.loads(_content(run_dir / NODE_FILE))["shared"]
    except (OSError, ValueError, KeyError, TypeError, BadInputError):
        return ""
    return shared if isinstance(shared, str) else ""


def first_node(shared: Path) -> FirstNode | None:
    """Node 0; None before the first start."""
    path = shared / NODES_FOLDER / "0"
    try:
        return FirstNode(NodeNote.model_validate_json(_content(path)), path.stat().st_mtime)
    except (OSError, ValidationError, BadInputError):
        return None


def state_of_nodes(first: FirstNode | None, occupant: Occupant | None, now_s: float) -> tuple[State, str]:
    """State of a run by the note of node 0, and its reason. Pure. ``occupant``: of the shared folder's lock."""
    if first is None:
        return "new", "no node has started yet"
    note, silent_s = first.note, now_s - first.noted_s
    who = f"{note}, of {note.nodes}"
    if note.state == "ended":
        ends: dict[int, State] = {0: "finished", INTERRUPTED_EXIT_CODE: "interrupted"}
        return ends.get(note.exit_code, "failed"), note.text
    if silent_s > SILENT_S:
        return "unknown", f"no sign of life for {duration(silent_s)} from {who}"
    if occupant is not None and occupant.is_alive is False:
        return "killed", f"{who}, is gone and recorded no end: it was killed, or its machine went down"
    where = f"{who}; progress: `icestream status {note.run_dir}` on {note.host}"
    return ("running" if note.state == "running" else "starting"), where


def training_of_nodes(shared: Path, config: dict[str, Any], state: State, step: int) -> TrainerStatus:
    """Progress of the training by the shared folder: its summary, else no more than the ``step`` of a checkpoint."""
    trainer = config.get("trainer")
    max_steps = trainer.get("max_steps") if isinstance(trainer, dict) else 0
    epochs = config.get("epochs")
    known = TrainerStatus(
        step=step,
        max_steps=max_steps if isinstance(max_steps, int) else 0,
        epochs=epochs if isinstance(epochs, int) else 0,
    )
    try:
        summary = Summary.model_validate_json(_content(shared / SUMMARY_FILE))
    except (OSError, ValidationError, BadInputError):
        return known
    if state not in _AT_END or summary.exit_status != state:
        return known
    counters = {name: getattr(summary, name) for name in Counters.model_fields if name in Summary.model_fields}
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


def _content(path: Path) -> bytes:
    """Beginning of a file, which may be another user's. Raises OSError, and BadInputError for no regular file."""
    with open_in_run(path) as file:
        return file.read(_MOST_BYTES)
