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
    try:
        config = _Config.model_validate_json(state["config"])
        position = _Position.model_validate_json(state["position"])
        run = TrainedRun(
            path,
            state["step"],
            position.counters.events_trained,
            config.trainer.model,
            (config.trainer.model_extra or {})[config.trainer.model],
            config.input,
            config.source,
            config.stream.held_out,
            without_secrets(state["config"]),
        )
        return build(run, state["task"])
    except (ValidationError, KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInputError(f"{path}: its model can't be built ({reason})") from None


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
    source: SourceConfig
    stream: _Stream
    trainer: _Trainer


class _Counters(BaseModel):
    events_trained: int


class _Position(BaseModel):
    counters: _Counters
