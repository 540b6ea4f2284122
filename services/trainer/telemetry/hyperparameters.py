"""Hyperparameters: a run's configuration as flat names and values without secrets. Pure."""

from __future__ import annotations

import json
from typing import Any

from common.redact import without_secrets
from services.config.leaves import leaves
from services.config.trainer import COMMON_SECTIONS
from services.trainer.telemetry.sinks import Setting

_OF_TRAINING = ("epochs", "input", "seed", "source.", "stream.", "trainer.", "workload")
"""Prefixes of the keys that define data and training; the others concern location and speed."""


def hyperparameters(config_json: str) -> dict[str, Setting]:
    """Dotted key -> value, lists as JSON, every text without secrets; of the models, that which is trained."""
    tree = json.loads(config_json)
    trainer = tree["trainer"]
    kept = {*COMMON_SECTIONS, trainer["model"]}
    tree["trainer"] = {key: value for key, value in trainer.items() if key in kept or not isinstance(value, dict)}
    of_training = {key: value for key, value in leaves(tree) if key.startswith(_OF_TRAINING)}
    return {key: _shown(value) for key, value in of_training.items() if value is not None}


def _shown(value: Any) -> Setting:
    if isinstance(value, bool | int | float):
        return value
    return without_secrets(value if isinstance(value, str) else json.dumps(value))
