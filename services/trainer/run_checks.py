"""Checks at the start and the end of a trainer, and the configuration stored in a checkpoint. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.plan_hash import plan_hash
from common.redact import without_secrets
from common.status import TrainerStatus
from services.config.root import Config
from services.trainer.checkpoints.checkpoint_folder import other_model


def require_plan(found: str, config: Config, run_dir: Path) -> None:
    """Raises BadInputError if ``found``, the run's plan hash, differs from that of this process's configuration."""
    if found == plan_hash(config.stored_workload(), config.stream, config.seed):
        return
    remedy = "leave out its own --set, -c and environment, and start it again"
    if config.transport.connect:
        remedy = f"copy the config.json of the run into {run_dir}, or give the same -c"
    raise BadInputError(f"this trainer's seed or stream settings are not those of the run: {remedy}")


def require_model(checkpoint: Mapping[str, Any], config: Config) -> None:
    """Raises BadInputError if another model wrote the checkpoint."""
    model = json.loads(checkpoint["config"])["trainer"]["model"]
    if model != config.trainer.model:
        raise other_model(checkpoint["step"], model, config.trainer.model)


def end_without_data(status: TrainerStatus) -> bool:
    """True if the whole plan was read without an event fit for training."""
    return status.state == "finished" and status.counters.events_trained == 0


def require_data(status: TrainerStatus) -> None:
    """Raises BadInputError if the whole plan was read without an event fit for training."""
    if end_without_data(status):
        raise BadInputError(f"there was nothing to train on: {status.counters.model_dump_json()}")


def config_for_checkpoint(config: Config) -> str:
    """Configuration as JSON without secrets: checkpoints are passed on."""
    inputs = tuple(without_secrets(text) for text in config.input)
    return config.model_copy(update={"input": inputs}).model_dump_json()
