"""A trained model from a checkpoint, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.stream.position import StreamPosition
from workloads.base.checkpoint import find_checkpoint, read_checkpoint
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.models.flow.sampler import FlowSampler
from workloads.muons.models.wgan.sampler import WganSampler

SAMPLERS: dict[str, Callable[[Any, dict[str, Any], torch.device], MuonGenerator]] = {
    "wgan": WganSampler.from_state,
    "flow": FlowSampler.from_state,
}


@dataclass(frozen=True)
class Trained:
    """A generator, and where it comes from."""

    generator: MuonGenerator
    config: Config
    """Of the run that trained it."""
    path: Path
    step: int
    events_trained: int

    @property
    def max_count(self) -> int:
        """Most muons in an event, by the settings of the run."""
        settings: Any = self.config.trainer.of_model
        return int(getattr(settings, "sampling", settings).max_count)


def load_trained(checkpoint: Path, device: torch.device) -> Trained:
    """From a checkpoint, or a run directory: there the best checkpoint, else the newest.

    Raises BadInputError that names the file.
    """
    path = find_checkpoint(checkpoint)
    state = read_checkpoint(path)
    try:
        config = Config.model_validate_json(state["config"])
        generator = SAMPLERS[config.trainer.model](config.trainer.of_model, state["task"], device)
        position = StreamPosition.model_validate_json(state["position"])
        return Trained(generator, config, path, state["step"], position.counters.events_trained)
    except (ValidationError, KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInputError(f"{path}: its model can't be built ({reason})") from None
