"""Checks at the start and the end of a trainer: of its checkpoint against its configuration. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.errors import BadInputError
from common.plan import plan_hash
from common.status import Counters, TrainerStatus
from common.text import without_secrets
from services.config.root import Config, leaves
from services.config.settings import is_known_model, removed_model
from workloads.registry import section_name


def changed_values(before_json: str, now_json: str, branch: str = "trainer") -> list[tuple[str, Any, Any]]:
    """Key, value before and value now of each key of ``branch`` in both configurations whose value has changed."""
    before, now = json.loads(before_json), json.loads(now_json)
    old, new = dict(leaves({branch: before.get(branch)})), dict(leaves({branch: now.get(branch)}))
    return [(key, old[key], new[key]) for key in new if key in old and old[key] != new[key]]


OF_THE_STREAM = ("seed", "workload", "stream", "source")
"""Branches of the settings that the order and the content of the stream depend on, besides its inputs."""
_REMEDY = (
    "resume with the former values, or use --new-plan to keep its weights and begin this plan, or --fresh to start over"
    " (several machines: another --shared)"
)
_NO_PART = ("stream.slots",)


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
    changes = changes_of_plan(checkpoint["config"], config_json, ("input", *OF_THE_STREAM))
    return f"({changes or otherwise}): {_REMEDY}"


def changes_of_plan(before_json: str, now_json: str, branches: Sequence[str] = OF_THE_STREAM) -> str:
    """`seed was 0, now 5; …`, for the settings of the stream that have changed."""
    changes = [change for branch in branches for change in changed_values(before_json, now_json, branch)]
    return _listed(change for change in changes if change[0] not in _NO_PART)


def misfit(checkpoint: Mapping[str, Any], place: str, config: Config, reason: Exception, remedy: str) -> BadInputError:
    """Error about the checkpoint at ``place`` whose weights fit no network of ``config``."""
    model = json.loads(checkpoint["config"])["trainer"]["model"]
    changes = [
        change
        for change in changed_values(checkpoint["config"], config.own_json())
        if change[0].startswith(("trainer.model", f"trainer.{section_name(model)}."))
    ]
    why = _listed(changes) or "another version of icestream, or of a model of your own, wrote it"
    told = " ".join(str(reason).split())[:300]
    return BadInputError(f"{place}: its weights fit no network of this configuration ({told}): {why}; {remedy}")


def _listed(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """`seed was 0, now 5; …`"""
    return "; ".join(f"{key} was {json.dumps(before)}, now {json.dumps(now)}" for key, before, now in changes)


LEAST_GPU_EVENTS = 8192
"""Events of a batch below which a step on a GPU takes the time of its launches: an estimate, never measured on one."""


def require_plan(found: str, config: Config) -> None:
    """Raises BadInputError if ``found``, the run's plan hash, differs from that of this process's configuration."""
    if found == plan_hash(config.stored_workload(), config.stream, config.seed):
        return
    raise BadInputError(
        "this trainer's seed or stream settings are not those of the run: leave out its own --set, -c and environment,"
        " and start it again"
    )


def require_model(checkpoint: Mapping[str, Any], config: Config) -> None:
    """Raises BadInputError if another model wrote the checkpoint."""
    model = json.loads(checkpoint["config"])["trainer"]["model"]
    if model != config.trainer.model:
        remedy = f"resume with --model {model}, or use --fresh to start over"
        if not is_known_model(model):
            remedy = removed_model(model)
        raise BadInputError(
            f"the checkpoint at step {checkpoint['step']} is of the model {model!r}, and trainer.model ="
            f" {config.trainer.model!r}: {remedy}"
        )


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
    if status.state != "finished" or status.counters.events_trained:
        return
    why = fates_of(status.counters) or "the files hold no event"
    newest = f"; the newest quarantined: {status.quarantined[-1]}" if status.quarantined else ""
    newest += f"; {status.invalid[0]}" if status.invalid else ""
    raise BadInputError(
        f"nothing to train on: all {status.counters.events_read:,} events were set aside: {why}{newest}"
    )


def fates_of(counters: Counters) -> str:
    """Events that were not trained, by their fates, in words."""
    fates = {
        "outliers (more particles than stream.max_particles_per_event)": counters.events_outlier,
        "empty": counters.events_empty,
        "quarantined": counters.events_quarantined,
        "held out (stream.held_out, stream.part)": counters.events_held_out,
        "filtered (stream.where)": counters.events_filtered,
        "invalid": counters.events_invalid,
    }
    return ", ".join(f"{number:,} {fate}" for fate, number in fates.items() if number)


def config_for_checkpoint(config: Config) -> str:
    """Configuration as JSON without secrets: checkpoints are passed on."""
    inputs = tuple(without_secrets(text) for text in config.input)
    return config.model_copy(update={"input": inputs}).own_json()
