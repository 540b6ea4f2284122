"""Run of a trained model, from its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.config import SourceConfig
from common.errors import BadInputError
from common.own_code import is_own, section_name
from common.redact import without_secrets
from workloads.base.checkpoint import find_checkpoint, read_checkpoint

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
