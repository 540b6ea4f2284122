"""Words for a checkpoint that does not fit the configuration: the settings that changed, and what to do. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.checkpoints.changed_settings import changed_values

_OF_THE_PLAN = ("input", "workload", "seed", "source", "stream")
_REMEDY = (
    "resume with the former values, or use --new-plan to keep its weights and begin this plan, or --fresh to start over"
)
_NO_PART = ("stream.slots",)
_MOST = 4


class MisfitError(BadInputError):
    """Weights fit no network of the configuration."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"the weights of step {step} fit no network of this configuration ({reason})")


def require_same_plan(checkpoint: Mapping[str, Any], plan_hash: str, config_json: str) -> None:
    """Raise BadInputError that names the changed settings if the checkpoint belongs to another plan."""
    if checkpoint["plan_hash"] != plan_hash:
        raise BadInputError(
            f"the checkpoint at step {checkpoint['step']} belongs to another plan"
            f" {new_plan_remedy(checkpoint, config_json, 'its source or stream settings were others')}"
        )


def new_plan_remedy(
    checkpoint: Mapping[str, Any], config_json: str, otherwise: str = "the files of its inputs were others"
) -> str:
    """Settings of the plan that differ from those of the checkpoint (``otherwise``: if none does), and what to do."""
    changes = [
        change
        for branch in _OF_THE_PLAN
        for change in changed_values(checkpoint["config"], config_json, branch)
        if change[0] not in _NO_PART
    ]
    return f"({_listed(changes) or otherwise}): {_REMEDY}"


def misfit(checkpoint: Mapping[str, Any], name: str, config: Config) -> BadInputError:
    """Error about a run's own checkpoint ``name`` whose weights fit no network of ``config``."""
    model = json.loads(checkpoint["config"])["trainer"]["model"]
    changes = [
        change
        for change in changed_values(checkpoint["config"], config.own_json(), "trainer")
        if change[0].startswith(f"trainer.{model}.")
    ]
    if not changes:
        return BadInputError(
            f"{name}: another version of icestream wrote it: resume with that version, or use --fresh to start over"
        )
    return BadInputError(
        f"{name}: its weights fit no network of this configuration: {_listed(changes)}; resume with the former values,"
        " or use --fresh to start over"
    )


def _listed(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """`seed was 0, now 5; …`"""
    texts = [f"{key} was {_shown(before)}, now {_shown(now)}" for key, before, now in changes]
    more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return "; ".join(texts[:_MOST]) + more


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return json.dumps(value)
