"""Trainer process: device, model, checkpoint and feed around the loop."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch

from common.attempt import RunAttempt, attempt_of, publishing_of
from common.errors import BadInputError
from common.own_code import is_own
from common.process import StopFlag
from common.schema import EventSchema
from common.status import TrainerStatus
from common.status_files import write_status
from common.transport import StopRequested
from services.config.root import Config
from services.trainer.checkpoints.changed_settings import changed_settings
from services.trainer.checkpoints.checkpoint import Checkpoints, FollowedCheckpoints
from services.trainer.counting.checkpoint import read_position
from services.trainer.health.health import update_limits
from services.trainer.loop import train
from services.trainer.plan_change import MisfitError, misfit, new_plan_remedy, require_same_plan
from services.trainer.ranks.agreement import Agreement
from services.trainer.ranks.rank_place import device_of, place_from
from services.trainer.ranks.ranks import Ranks
from services.trainer.run_checks import (
    config_for_checkpoint,
    remedy_for_misfit,
    require_data,
    require_meaning,
    require_model,
    require_plan,
    warnings_of_speed,
)
from services.trainer.speed.device_environment import be_deterministic
from services.trainer.speed.gauges import Gauges
from services.trainer.state import TrainState
from services.trainer.stream.audit import audit_of
from services.trainer.stream.copier import copiers_for
from services.trainer.stream.feed import Feed
from services.trainer.stream.shares import shares_of_rank
from services.trainer.telemetry.open_telemetry import ReadValidationEvents, fills_block, open_telemetry
from workloads import registry
from workloads.base.checkpoint import find_checkpoint, read_checkpoint
from workloads.base.context import StepContext
from workloads.base.cpu_tuning import tune_cpu
from workloads.base.device import device_named
from workloads.base.own_model import own_training
from workloads.base.random_streams import SharedPurpose, stream_seed
from workloads.base.task import Task
from workloads.base.training import Training

logger = logging.getLogger(__name__)

_LOCK_WAIT_S = 60.0
_STOP = b"\0stop"


def training_of(config: Config) -> Training:
    """Training of the configured model."""
    if is_own(config.trainer.model):
        return own_training(config.trainer.model)
    model = registry.workload(config.workload).models[config.trainer.model]
    training: Training = registry.imported(model.training)
    return training


def step_context(config: Config, device: torch.device, ranks: Ranks) -> StepContext:
    """Context of a step, the same for every model."""
    return StepContext(
        device,
        config.seed,
        limits=update_limits(config.trainer.health),
        sum_over_ranks=ranks.sum_,
        bf16=config.trainer.precision == "bf16",
        threads=config.trainer.threads or len(os.sched_getaffinity(0)),
        max_particles=config.stream.max_particles,
        max_squared_particles=config.stream.max_squared_particles,
        inputs=config.input,
    )


def new_state(config: Config, training: Training, context: StepContext, plan_hash: str) -> TrainState:
    """State before the first step of a run."""
    return TrainState(
        training.task(config.trainer.of_model, context),
        context.device,
        plan_hash,
        shards=config.stream.shards,
        health=config.trainer.health,
        headline=training.headline,
        shown=training.shown,
        alarms=training.alarms,
    )


def run_trainer(
    run_dir: Path,
    config: Config,
    stop: StopFlag,
    read_validation_events: ReadValidationEvents,
    *,
    accept_new_plan: bool,
) -> TrainerStatus | None:
    """Train to the end, or until ``stop`` is set; the final status, None if stopped before training began.

    The environment may define this process as one of several ranks. Raises BadInputError for a user's mistake, RankLost
    if another rank is gone.
    """
    place = place_from(os.environ)
    name = config.trainer.device
    device = trainer_device(device_of(name, place, torch.cuda.device_count()) if place else name)
    set_up_torch(config, device)
    ranks, checkpoints = Ranks.alone(), None
    try:
        if place is not None:
            shares_of_rank(config.stream, place.rank, place.size)  # raises before any rank waits
            timeout_s = config.trainer.ranks_timeout_s
            ranks = Ranks.join(place, device, timeout_s=timeout_s, stopped=lambda: bool(stop))
        checkpoints, latest = _restore(run_dir, config, stop, ranks, attempt_of(os.environ))
        status = _resume(
            run_dir,
            config,
            stop,
            device,
            ranks,
            checkpoints,
            latest,
            read_validation_events,
            accept_new_plan=accept_new_plan,
        )
        ranks.close()  # in good order; the others notice a rank that fails
        return status
    except StopRequested:
        return None
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _restore(
    run_dir: Path, config: Config, stop: StopFlag, ranks: Ranks, attempt: RunAttempt | None
) -> tuple[Checkpoints, tuple[Path, dict[str, Any]] | None]:
    """Checkpoint folder and newest checkpoint: the first rank holds the folder and reads; the others receive it.

    Raises StopRequested on all ranks if the first one was asked to stop.
    """
    if not ranks.is_first:
        word = ranks.broadcast(None)
        if word == _STOP:
            raise StopRequested
        checkpoint = ranks.broadcast_state(None)
        found = (Path(word.decode()), checkpoint) if checkpoint is not None else None
        return FollowedCheckpoints(run_dir, attempt), found
    keep = config.trainer.keep_checkpoints
    try:
        checkpoints = Checkpoints(run_dir, keep, wait_s=_LOCK_WAIT_S, stopped=lambda: bool(stop), attempt=attempt)
    except StopRequested:
        ranks.broadcast(_STOP)
        raise
    if (counted := checkpoints.foreign()) is not None:
        require_model(read_position(counted), config)
    latest = checkpoints.latest()
    ranks.broadcast(latest[0].name.encode() if latest is not None else b"new")
    ranks.broadcast_state(latest[1] if latest is not None else None)
    return checkpoints, latest


def _connect(
    run_dir: Path,
    config: Config,
    workload: EventSchema,
    stop: StopFlag,
    device: torch.device,
    ranks: Ranks,
    *,
    accept: bool,
    remedy: str,
) -> Feed:
    """Feed of this rank; ``remedy``: see Feed.

    Raises StopRequested on all ranks if one was asked to stop while it waited.
    """
    feed = None
    try:
        feed = Feed(
            run_dir,
            workload,
            config.stream,
            config.transport,
            copiers=copiers_for(device, workload.step_columns),
            prefetch_units=config.trainer.prefetch_units,
            audit=config.trainer.audit,
            keep_ids=fills_block(config) and ranks.is_first,
            stopped=lambda: bool(stop),
            rank=ranks.rank,
            ranks=ranks.size,
            agreement=Agreement(ranks, lambda: bool(stop)),
            accept_new_plan=accept,
            remedy=remedy,
        )
    except StopRequested:
        ranks.gather("stop")
        raise
    if "stop" in ranks.gather("connected"):
        feed.close()
        raise StopRequested
    return feed


def _resume(
    run_dir: Path,
    config: Config,
    stop: StopFlag,
    device: torch.device,
    ranks: Ranks,
    checkpoints: Checkpoints,
    latest: tuple[Path, dict[str, Any]] | None,
    read_validation_events: ReadValidationEvents,
    *,
    accept_new_plan: bool,
) -> TrainerStatus:
    workload = config.stored_workload()
    config_json = config_for_checkpoint(config)
    remedy = new_plan_remedy(latest[1], config_json) if latest is not None else ""
    feed = _connect(run_dir, config, workload, stop, device, ranks, accept=accept_new_plan, remedy=remedy)
    try:
        require_plan(feed.plan_hash, config, run_dir)
        training = training_of(config)
        state = new_state(config, training, step_context(config, device, ranks), feed.plan_hash)
        if latest is not None:
            path, checkpoint = latest
            require_model(checkpoint, config)
            require_meaning(
                checkpoint, config, training.meaning_of_weights, path.name, ", or use --fresh to start over"
            )
            if not accept_new_plan:
                require_same_plan(checkpoint, feed.plan_hash, config_json)
            try:
                state.restore(checkpoint, accept_new_plan=accept_new_plan)
            except MisfitError as error:
                logger.info("%s", error)
                raise misfit(checkpoint, path.name, config) from None
            logger.info("resumes from %s: step %d, epoch %d", path.name, state.step, state.position.epoch + 1)
            for line in changed_settings(checkpoint["config"], config_json):
                logger.info("changed since that checkpoint: %s", line)
        else:
            logger.info("new run, plan %.12s, device %s", feed.plan_hash, device)
            if config.trainer.start_from:
                start_from(Path(config.trainer.start_from), state.task, config)
        of_speed = warnings_of_speed(config.stream.batch_events, device.type)
        warnings = (*training.warnings(config.trainer.of_model), *of_speed)
        return _train(run_dir, config, state, feed, checkpoints, ranks, stop, read_validation_events, warnings)
    finally:
        feed.close()


def start_from(place: Path, task: Task, config: Config) -> None:
    """Load the weights of another run. Raises BadInputError that names its checkpoint."""
    path = find_checkpoint(place)
    checkpoint = read_checkpoint(path)
    require_meaning(checkpoint, config, training_of(config).meaning_of_weights, f"trainer.start_from = {path}")
    try:
        task.load_weights(checkpoint["task"])
    except (KeyError, RuntimeError, ValueError) as error:
        reason, model = " ".join(str(error).split())[:300], json.loads(checkpoint["config"])["trainer"]["model"]
        raise BadInputError(
            f"trainer.start_from = {path}: of the model {model!r}, it fits no model of this configuration ({reason});"
            f" {remedy_for_misfit(checkpoint, config)}"
        ) from None
    logger.info("starts from the weights of %s, step %d", path, checkpoint["step"])


def set_up_torch(config: Config, device: torch.device) -> None:
    """Set torch up for the whole process, independent of the task."""
    torch.set_num_threads(1)  # networks as small as these are slower with several: the task runs parts in parallel
    precision = config.trainer.precision
    if precision == "tf32" or (precision == "auto" and device.type == "cuda"):
        torch.set_float32_matmul_precision("high")
    else:
        tune_cpu(device)
    torch.manual_seed(stream_seed(SharedPurpose.TRAINER, config.seed))
    if config.trainer.deterministic:
        be_deterministic()


def trainer_device(name: str) -> torch.device:
    """Device of that name; `auto` is CUDA where there is a device. Raises BadInputError if it is not available."""
    return device_named(name, f"trainer.device = {name!r}")


def _train(
    run_dir: Path,
    config: Config,
    state: TrainState,
    feed: Feed,
    checkpoints: Checkpoints,
    ranks: Ranks,
    stop: StopFlag,
    read_validation_events: ReadValidationEvents,
    warnings: tuple[str, ...],
) -> TrainerStatus:
    config_json = config_for_checkpoint(config)
    evaluator = training_of(config).evaluator(state.task, config.seed)
    attempt = attempt_of(os.environ)
    results = attempt.shared if attempt is not None else run_dir
    place = place_from(os.environ)
    telemetry = open_telemetry(
        run_dir,
        config,
        state,
        evaluator,
        config_json,
        read_validation_events,
        rank=ranks.rank,
        local_rank=place.local_rank if place is not None and attempt is not None else ranks.rank,
        attempt=attempt,
    )
    telemetry.warn(warnings)
    audit = audit_of(run_dir, state.audit_bytes, ranks, config.stream, attempt) if config.trainer.audit else None
    if 0 < config.trainer.max_steps <= state.step:
        logger.info("trainer.max_steps = %d is reached already; raise it to continue", config.trainer.max_steps)
    gauges = Gauges(results, config.trainer, state.device, rank=ranks.rank, ranks=ranks.size)
    try:
        telemetry.status("starting", state, feed.waits, force=True)
        end = train(
            results,
            state,
            feed,
            checkpoints,
            telemetry,
            audit,
            config.trainer,
            config_json,
            lambda: feed.stopped,
            gauges.stepped,
            publishing_of(attempt),
        )
        status = telemetry.status(end, state, feed.waits, force=True)
        status = gauges.close(state, status, stopped=lambda: bool(stop))
        if ranks.is_first:
            write_status(run_dir, "trainer", status)
    finally:
        telemetry.close()
    require_data(status)
    return status
