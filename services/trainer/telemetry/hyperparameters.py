"""Hyperparameters: a run's configuration as flat names and values without secrets. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from common.redact import without_secrets
from services.trainer.telemetry.sinks import Setting

_OF_TRAINING = ("epochs", "input", "seed", "source.", "stream.", "trainer.", "workload")
"""Prefixes of the keys that define data and training; the others concern location and speed."""


def hyperparameters(config_json: str) -> dict[str, Setting]:
    """Dotted key -> value, lists as JSON, every text without secrets."""
    return {key: value for key, value in _leaves(json.loads(config_json)) if key.startswith(_OF_TRAINING)}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif isinstance(value, bool | int | float):
            yield key, value
        elif value is not None:
            yield key, without_secrets(value if isinstance(value, str) else json.dumps(value))
