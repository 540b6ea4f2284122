"""Checks at the start and the end of a trainer, and the configuration stored in a checkpoint. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import BadInputError
from common.own_code import is_own, section_name
from common.plan_hash import plan_hash
from common.redact import without_secrets
from common.status import TrainerStatus
from services.config.leaves import leaves
from services.config.root import Config
from services.config.trainer import is_known_model
from services.trainer.checkpoints.changed_settings import changed_values
from services.trainer.checkpoints.checkpoint_folder import other_model

LEAST_GPU_EVENTS = 8192
"""Events of a batch below which a step on a GPU takes the time of its launches: an estimate, never measured on one."""


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


def require_meaning(
    checkpoint: Mapping[str, Any], config: Config, names: Sequence[str], place: str, remedy: str = ""
) -> None:
    """Raises BadInputError if a setting of ``names``, those of Training.meaning_of_weights, was another for the weights
    of the checkpoint at ``place``: they would load, with another meaning. ``remedy``: other than the former value."""
    wanted = {f"trainer.{section_name(config.trainer.model)}.{name}" for name in names}
    for key, before, now in changed_values(checkpoint["config"], config_for_checkpoint(config)):
        if key in wanted:
            raise BadInputError(
                f"{place}: its weights were learned with {key} = {before}, it is {now} now: set it to {before}{remedy}"
            )


def remedy_for_misfit(checkpoint: Mapping[str, Any], config: Config) -> str:
    """Remedy for weights to start from that fit no network of this configuration."""
    before, now = (json.loads(text)["trainer"] for text in (checkpoint["config"], config.own_json()))
    model = before["model"]
    same = "use the same trainer.model and networks"
    if is_known_model(model):
        if model != config.trainer.model:
            return same
        if is_own(model):
            return "restore its code and trainer.own as they were"
        known = dict(leaves(now[model]))
        changed = changed_values(checkpoint["config"], config.own_json(), "trainer")
        is_known = all(key in known for key, _ in leaves(before[model]))
        if is_known and any(key.startswith(f"trainer.{model}.network.") for key, *_ in changed):
            return same
    return "another version of icestream wrote it: start from a run of this one, or resume with that version"


def end_without_data(status: TrainerStatus) -> bool:
    """True if the whole plan was read without an event fit for training."""
    return status.state == "finished" and status.counters.events_trained == 0


def warnings_of_speed(batch_events: int, device_type: str) -> tuple[str, ...]:
    """Warning of batches that leave a GPU idle, whatever the model: at most one line."""
    if device_type != "cuda" or batch_events >= LEAST_GPU_EVENTS:
        return ()
    return (
        f"stream.batch_events = {batch_events:,} is small for a GPU, which then waits for the host to launch a step's"
        f" operators, several milliseconds a step: raise it to {LEAST_GPU_EVENTS:,} or more if training allows it",
    )


def require_data(status: TrainerStatus) -> None:
    """Raises BadInputError if the whole plan was read without an event fit for training."""
    if not end_without_data(status):
        return
    counters = status.counters
    fates = {
        "outliers (more particles than stream.max_particles_per_event)": counters.events_outlier,
        "empty": counters.events_empty,
        "quarantined": counters.events_quarantined,
        "held out (stream.held_out)": counters.events_held_out,
        "invalid": counters.events_invalid,
    }
    why = ", ".join(f"{number:,} {fate}" for fate, number in fates.items() if number) or "the files hold no event"
    newest = f"; the newest quarantined: {status.quarantined[-1]}" if status.quarantined else ""
    newest += f"; {status.invalid[0]}" if status.invalid else ""
    raise BadInputError(f"nothing to train on: all {counters.events_read:,} events were set aside: {why}{newest}")


def config_for_checkpoint(config: Config) -> str:
    """Configuration as JSON without secrets: checkpoints are passed on."""
    inputs = tuple(without_secrets(text) for text in config.input)
    return config.model_copy(update={"input": inputs}).own_json()
