"""Checkpoint files: find, load without running code in them, check; and the trained model of a run as Python gets it.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import pickle
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.config import SourceConfig
from common.errors import BadInputError
from common.own_code import is_own
from common.paths import NODE_FILE
from common.text import without_secrets
from workloads.base.interface import Front
from workloads.base.training import own_training
from workloads.registry import NO_MODEL, section_name

if TYPE_CHECKING:
    import torch


def versions(packages: Sequence[str], *, optional: Sequence[str] = ()) -> dict[str, str]:
    """Versions of Python and of ``packages``, ``unknown`` if run from sources; optional ones only if installed."""
    found = {"python": platform.python_version()}
    for package in (*packages, *optional):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package not in optional:
                found[package] = "unknown"
    return found


CHECKPOINT_FOLDER = "checkpoints"
BEST = "best.pt"
STEP_NAME = re.compile(r"step-(\d{9,})\.pt")
"""Name of a checkpoint: its step."""
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
    if (place / NODE_FILE).is_file():
        raise BadInputError(
            f"{place}: of one of several nodes; its checkpoints are in the folder that they share: --shared"
        )
    raise BadInputError(f"{place}: no checkpoint in it; name a checkpoint, or the folder of a run that has one")


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Newest checkpoint of a run, None before the first."""
    found = (path for path in (run_dir / CHECKPOINT_FOLDER).glob("step-*") if STEP_NAME.fullmatch(path.name))
    return max(found, default=None)


def newest_step(run_dir: Path) -> int:
    """Step of the newest checkpoint; 0 before the first."""
    newest = newest_checkpoint(run_dir)
    return int(newest.stem.removeprefix("step-")) if newest is not None else 0


class UnreadableError(BadInputError):
    """Damaged checkpoint, or a file that is none."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Contents of a checkpoint, on the CPU. Raises BadInputError that names the file, UnreadableError if damaged."""
    import torch  # seconds, which a look at a run directory needs not

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # whose text advises to run the pickle
        raise UnreadableError(f"{path}: can't be read (damaged, or not written by icestream)") from None
    except Exception as error:  # noqa: BLE001  damage can make the unpickler fail in any way
        raise UnreadableError(f"{path}: can't be read ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        if isinstance(state, dict) and "format" not in state:
            other = "cr_muons" if state.keys() & {"gen_state_dict", "generator"} else "another program"
            raise BadInputError(
                f"{path}: a checkpoint of {other}, whose weights can't be used, as the networks differ: train a model"
                " with `icestream run` (docs/how-to/migrate.md)"
            )
        raise BadInputError(f"{path}: not a checkpoint of format {FORMAT}, which this version writes: use another")
    return state


def run_dir_of(checkpoint: Path) -> Path | None:
    """Run directory of a checkpoint file; None if the file lies elsewhere."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == CHECKPOINT_FOLDER else None


Model = TypeVar("Model")


@dataclass(frozen=True)
class TrainedRun:
    """Checkpoint, and the settings of its run that the trained model depends on."""

    path: Path
    """The checkpoint file."""
    step: int
    events_trained: int
    model: str
    """Name of the model: `trainer.model`."""
    section: Mapping[str, Any]
    """Settings of the model, not validated: `trainer.MODEL`."""
    inputs: tuple[str, ...]
    source: SourceConfig
    held_out: float
    """Share of the events on which it was never trained: `stream.held_out`."""
    config_json: str
    """The whole configuration, without secrets."""
    workload: str = ""
    """Name of its workload; empty if that is unknown."""

    def require_workload(self, name: str) -> None:
        """Raise BadInputError if the run is of another workload than ``name``, or of a model of the user's own."""
        if is_own(self.model):
            raise BadInputError(
                f"{self.path}: of a model of your own, which icestream.load(run, model={self.model!r}) gives"
            )
        if self.workload not in ("", name):
            raise BadInputError(
                f"{self.path} is a run of the workload {self.workload}: name one of the workload {name}"
            )

    @property
    def config_digest(self) -> str:
        """Digest of the whole configuration, in hexadecimal digits."""
        return hashlib.sha256(self.config_json.encode()).hexdigest()[:16]


def load_run(place: Path, build: Callable[[TrainedRun, dict[str, Any]], Model]) -> Model:
    """Model that ``build`` makes from a checkpoint's run and its task's state.

    ``place`` is a checkpoint, or a run directory: its best checkpoint, else its newest.
    Raises BadInputError that names the file, also instead of a ValidationError, KeyError, RuntimeError or ValueError.
    """
    path = find_checkpoint(place)
    state = read_checkpoint(path)
    prefix = ""
    try:
        config = _Config.model_validate_json(state["config"])
        if config.trainer.model == NO_MODEL:
            raise BadInputError(f"{path}: its run trained no model (--model none), it has no weights")
        position = _Position.model_validate_json(state["position"])
        run = TrainedRun(
            path,
            state["step"],
            position.counters.events_trained,
            config.trainer.model,
            (config.trainer.model_extra or {})[section_name(config.trainer.model)],
            config.input,
            config.source,
            config.stream.held_out,
            without_secrets(state["config"]),
            config.workload,
        )
        prefix = f"trainer.{run.model}."
        return build(run, state["task"])
    except (ValidationError, KeyError, RuntimeError, ValueError) as error:
        raise BadInputError(f"{path}: its model can't be built {_why(error, prefix)}") from None


def _why(error: Exception, prefix: str) -> str:
    """Reason of a failed build, in brackets, and the remedy if another version wrote the checkpoint. ``prefix``: of
    the model's settings; empty before these were reached."""
    remedy = ": use the version of icestream that wrote it, or train again"
    if isinstance(error, ValidationError):
        by_key = {".".join(map(str, one["loc"])): one for one in error.errors()}
        strange = [prefix + key for key, one in by_key.items() if one["type"] == "extra_forbidden"]
        if strange:
            return f"(this version has no settings {', '.join(strange)}){remedy}"
        return "(" + "; ".join(f"{prefix}{key}: {one['msg']}" for key, one in by_key.items()) + f"){remedy}"
    reason = " ".join(str(error).split())[:300]
    if prefix and (isinstance(error, KeyError) or "state_dict" in reason):
        return f"(its networks are not those of this version: {reason}){remedy}"
    return f"({reason})"


class _Trainer(BaseModel):
    """Section `trainer`; the sections of its models are not parsed."""

    model_config = ConfigDict(extra="allow")
    model: str


class _Stream(BaseModel):
    """Section `stream`; checkpoints of earlier versions hold nothing out."""

    held_out: float = 0.0


class _Config(BaseModel):
    """Needed part of a stored configuration; the trainer validated all of it when it wrote the file."""

    input: tuple[str, ...]
    workload: str = ""
    source: SourceConfig
    stream: _Stream
    trainer: _Trainer


class _Counters(BaseModel):
    events_trained: int


class _Position(BaseModel):
    counters: _Counters


def load_own(run: TrainedRun, task_state: dict[str, Any], device: torch.device, named: str | None) -> Any:
    """Return the trained model that its training's `load(section, task_state, device)` makes. Raises BadInputError.

    ``named``: the model as the caller names it: no module is imported because a checkpoint, which may be anybody's,
    names it.
    """
    if named != run.model:
        raise BadInputError(
            f"{run.path} is of a model of the user's own: if you trust its code, name it: model={run.model!r}"
        )
    training: Any = own_training(named)
    if not hasattr(training, "load"):
        raise BadInputError(f"{named} has no load(section, task_state, device)")
    return training.load(run.section, task_state, device)


class NoSuchUseError(BadInputError, AttributeError):
    """Use of a trained model that models of its workload don't have."""


class TrainedModel:
    """Trained model of a run. What can be done with it depends on its workload: see `uses`."""

    uses: tuple[str, ...] = ()
    """Names of the methods that the workload adds."""

    def __init__(self, front: Front, run: TrainedRun) -> None:
        self._front = front
        self.run = run
        """Settings of the run that the model depends on."""

    @property
    def checkpoint(self) -> Path:
        """Checkpoint file that was loaded."""
        return self.run.path

    @property
    def step(self) -> int:
        """Optimiser steps that the model was trained."""
        return self.run.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by Python and notebooks themselves
            raise AttributeError(name)
        raise NoSuchUseError(
            f"{self.run.path}: a {self.run.model!r} of the workload {self.run.workload} has no {name!r}; it has"
            f" {', '.join(self.uses) or 'nothing of the kind'}"
        )

    def __repr__(self) -> str:
        return f"<{self.run.model} of {self.run.path}, step {self.run.step:,}: {', '.join(self.uses)}>"
