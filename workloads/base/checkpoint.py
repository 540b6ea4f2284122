"""Checkpoint files: find, load without running code in them, check. Imports no torch."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.run_dir import NODE_FILE

CHECKPOINT_FOLDER = "checkpoints"
BEST = "best.pt"
STEP_NAME = re.compile(r"step-(\d{9,})\.(pt|json)")
"""Name of a checkpoint: its step, with weights (pt) or without."""
FORMAT = 2


def find_checkpoint(place: Path) -> Path:
    """The checkpoint file itself, or the best one of a run directory, else its newest. Raises BadInputError."""
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
    if (place / NODE_FILE).is_file():
        raise BadInputError(
            f"{place}: of one of several nodes; its checkpoints are in the folder that they share: --shared"
        )
    raise BadInputError(f"{place}: no checkpoint in it; name a checkpoint, or the folder of a run that has one")


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Newest checkpoint of a run, with weights or without; None before the first."""
    found = (path for path in (run_dir / CHECKPOINT_FOLDER).glob("step-*") if STEP_NAME.fullmatch(path.name))
    return max(found, default=None)


def newest_step(run_dir: Path) -> int:
    """Step of the newest checkpoint; 0 before the first."""
    newest = newest_checkpoint(run_dir)
    return int(newest.stem.removeprefix("step-")) if newest is not None else 0


class UnreadableError(BadInputError):
    """Damaged checkpoint, or a file that is none."""


def why_unreadable(error: Exception) -> str:
    """Reason for a failure of torch.load, without its advice to run the pickle that it refuses."""
    if isinstance(error, pickle.UnpicklingError):
        return "damaged, or not written by icestream"
    return " ".join(str(error).split())[:200]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Contents of a checkpoint, on the CPU. Raises BadInputError that names the file, UnreadableError if damaged."""
    import torch  # seconds: a trainer that only counts needs none

    if path.suffix == ".json":
        raise BadInputError(f"{path}: of a run that only counted events (--model none), it has no weights")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  damage can make the unpickler fail in any way
        raise UnreadableError(f"{path}: can't be read ({why_unreadable(error)})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise BadInputError(f"{path}: not a checkpoint of format {FORMAT}; use --fresh, or another run directory")
    return state


def run_dir_of(checkpoint: Path) -> Path | None:
    """Run directory of a checkpoint file; None if the file lies elsewhere."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == CHECKPOINT_FOLDER else None
