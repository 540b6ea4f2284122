"""Trainer process: run_trainer() connects and restores, train() is the loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal

import torch

from common.locks import RunAttempt, attempt_of, publishing_of
from common.own_code import is_own
from common.process import StopFlag
from common.status import TrainerStatus, write_status
from common.transport import StopRequested
from services.config.root import Config
from services.config.settings import TrainerConfig
from services.trainer import checks
from services.trainer.agreement import Agreement, shares_of_rank
from services.trainer.audit import Audit
from services.trainer.commits import Checkpoints, Commits, FollowedCheckpoints
from services.trainer.environment import RANKS_TIMEOUT_S, be_deterministic, device_of, place_from
from services.trainer.feed import Feed
from services.trainer.health import HEALTH_FILE, UPDATE_LIMITS, Guard, Health, HealthLog, Unhealthy
from services.trainer.ranks import Ranks
from services.trainer.speed import Gauges
from services.trainer.state import TrainState
from services.trainer.telemetry import ReadValidationEvents, Telemetry, fills_block, open_telemetry
from workloads import registry
from workloads.base.batch import Batch
from workloads.base.checkpoint import find_checkpoint, read_checkpoint
from workloads.base.context import StepContext
from workloads.base.device import device_named, tune_cpu
from workloads.base.module_training import NO_MODEL_TRAINING
from workloads.base.random_streams import SharedPurpose, stream_seed
from workloads.base.training import Task, Training, own_training
from workloads.registry import NO_MODEL

logger = logging.getLogger(__name__)

MISFITS = (KeyError, RuntimeError, ValueError)
"""Errors of torch for weights that fit no network."""
_END: Any = object()
_LOCK_WAIT_S = 60.0


def training_of(config: Config) -> Training:
    """Training of the configured model."""
    if config.trainer.model == NO_MODEL:
        return NO_MODEL_TRAINING
    if is_own(config.trainer.model):
        return own_training(config.trainer.model)
    return registry.loaded(registry.workload(config.workload).models[config.trainer.model].training)


def step_context(config: Config, device: torch.device, ranks: Ranks) -> StepContext:
    """Context of a step, the same for every model."""
    return StepContext(
        device,
        config.seed,
        limits=UPDATE_LIMITS,
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
        stream=config.stream,
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
    place, attempt, name = place_from(os.environ), attempt_of(os.environ), config.trainer.device
    device = trainer_device(device_of(name, place, torch.cuda.device_count()) if place else name)
    set_up_torch(config, device)
    results = attempt.shared if attempt is not None else run_dir
    config_json = checks.config_for_checkpoint(config)
    try:
        with ExitStack() as stack:  # what is opened here is closed in the opposite order
            ranks = Ranks.alone()
            if place is not None:
                shares_of_rank(config.stream, place.rank, place.size)  # raises before any rank waits
                ranks = Ranks.join(place, device, timeout_s=RANKS_TIMEOUT_S, stopped=lambda: bool(stop))
            checkpoints, latest = _restore(run_dir, config, stop, ranks, attempt)
            stack.callback(checkpoints.close)
            remedy = checks.new_plan_remedy(latest[1], config_json) if latest is not None else ""
            feed = _connect(run_dir, config, stop, device, ranks, accept=accept_new_plan, remedy=remedy)
            stack.callback(feed.close)
            checks.require_plan(feed.plan_hash, config)
            training = training_of(config)
            state = new_state(config, training, step_context(config, device, ranks), feed.plan_hash)
            begin(state, config, training, latest, accept_new_plan=accept_new_plan)
            telemetry = open_telemetry(
                run_dir,
                config,
                state,
                training.evaluator(state.task, config.seed),
                config_json,
                read_validation_events,
                rank=ranks.rank,
                local_rank=place.local_rank if place is not None and attempt is not None else ranks.rank,
                attempt=attempt,
            )
            stack.callback(telemetry.close)
            telemetry.warn(training.warnings(config.trainer.of_model))
            telemetry.warn(checks.warnings_of_speed(config.stream.batch_events, device.type))
            audit = None
            if config.trainer.audit:
                audit = Audit(results, state.audit_bytes, ranks, config.stream, attempt)
            gauges = Gauges(results, config.trainer, device, rank=ranks.rank)
            telemetry.status("starting", state, feed.waits, force=True)
            log = HealthLog(results / HEALTH_FILE, publishing_of(attempt))
            ranks.begin_steps(device)
            end = train(state, feed, checkpoints, telemetry, audit, log, config.trainer, config_json, gauges.stepped)
            status = gauges.close(telemetry.status(end, state, feed.waits, force=True))
            if ranks.is_first:
                write_status(run_dir, "trainer", status)
            checks.require_data(status)
        ranks.close()  # the others know from it that this rank has not failed
        return status
    except StopRequested:
        return None


def train(
    state: TrainState,
    feed: Feed,
    checkpoints: Checkpoints,
    telemetry: Telemetry,
    audit: Audit | None,
    health_log: HealthLog,
    config: TrainerConfig,
    config_json: str,
    step_done: Callable[[int, Batch], None] = lambda step, batch: None,
) -> Literal["finished", "stopped"]:
    """Train until the plan ends, ``max_steps`` is reached, or a stop is requested. Ends with a checkpoint.

    Independent of the model. Raises BadInputError if training diverges repeatedly.
    """
    guard = Guard(state.watch, health_log)
    every = config.checkpoint_every
    commits = Commits(state, checkpoints, guard, telemetry, audit, feed, config_json, every)
    started_s = time.monotonic() - state.seconds

    def is_enough() -> bool:
        return 0 < config.max_steps <= state.step

    def commit(*, stepped: bool = False, ending: bool = False, again: bool = False) -> None:
        state.seconds = time.monotonic() - started_s
        commits.turn(stepped=stepped, ending=ending, again=again)

    with closing(commits):
        while True:
            try:
                with closing(feed.stream(state.position)) as batches:
                    while not is_enough() and not feed.agreement.stopped and (fed := next(batches, _END)) is not _END:
                        telemetry.warn((feed.outside_values,) if feed.outside_values else ())
                        if fed is None:  # no data yet: a fetcher without room may need a checkpoint before it has any
                            telemetry.status("", state, feed.waits)  # else the waiting would not be seen
                            commit()
                            continue
                        metrics = state.task.step(fed.batch)  # forward, backward, update; no host sync
                        state.step += 1
                        state.position = fed.position  # from here on the batch counts as trained
                        state.seconds = time.monotonic() - started_s
                        if audit:
                            audit.write(fed.audit_lines)
                        state.recent.add(metrics[state.headline])
                        guard.note(state.step, fed.batch, metrics)
                        if state.step % config.log_every == 0 or state.step == 1:  # the only host sync
                            telemetry.scalars(state, metrics | {state.mean_name: state.recent.mean()}, feed.waits)
                            guard.look()
                            telemetry.health(state, guard.health, guard.reason)
                        else:
                            telemetry.status("training", state, feed.waits)
                        telemetry.stepped(state, fed.batch, fed.ids, is_last=is_enough())
                        commit(stepped=True)
                        step_done(state.step, fed.batch)
                if feed.ended:
                    state.position = feed.position  # units without events may stand behind the last batch
                is_unseen = feed.ended and telemetry.has_new_weights
                if is_unseen:
                    telemetry.evaluate(state)
                commit(ending=True, again=is_unseen)
                break
            except Unhealthy as unhealthy:
                commits.roll_back(unhealthy)
                telemetry.rolled_back(state.step)
                telemetry.health(state, Health.CRITICAL, str(unhealthy))
                with suppress(StopRequested):
                    feed.reconnect()
    if feed.ended or is_enough():
        feed.finished(state.position)
        return "finished"
    return "stopped"


def _restore(
    run_dir: Path, config: Config, stop: StopFlag, ranks: Ranks, attempt: RunAttempt | None
) -> tuple[Checkpoints, tuple[Path, dict[str, Any]] | None]:
    """Checkpoint folder and newest checkpoint: the first rank holds the folder and reads; the others receive it.

    Raises StopRequested on all ranks if the first one was asked to stop.
    """
    if not ranks.is_first:
        told = ranks.broadcast(None)
        if told.get("stop"):
            raise StopRequested
        return FollowedCheckpoints(run_dir, attempt), (Path(told["name"]), told["content"]) if told else None
    keep = config.trainer.keep_checkpoints
    try:
        checkpoints = Checkpoints(run_dir, keep, wait_s=_LOCK_WAIT_S, stopped=lambda: bool(stop), attempt=attempt)
    except StopRequested:
        ranks.broadcast({"stop": True})
        raise
    latest = checkpoints.latest()
    ranks.broadcast({"name": latest[0].name, "content": latest[1]} if latest is not None else {})
    return checkpoints, latest


def _connect(
    run_dir: Path, config: Config, stop: StopFlag, device: torch.device, ranks: Ranks, *, accept: bool, remedy: str
) -> Feed:
    """Feed of this rank; ``remedy``: see Feed.

    Raises StopRequested on all ranks if one was asked to stop while it waited.
    """
    workload = config.stored_workload()
    try:
        feed = Feed(
            run_dir,
            workload,
            config.stream,
            config.transport,
            device=device,
            columns=workload.step_columns,
            audit=config.trainer.audit,
            keep_ids=fills_block(config) and ranks.is_first,
            stopped=lambda: bool(stop),
            rank=ranks.rank,
            ranks=ranks.size,
            agreement=Agreement(ranks, lambda: bool(stop)),
            accept_new_plan=accept,
            remedy=remedy,
            epochs=config.epochs,
        )
    except StopRequested:
        ranks.gather("stop")
        raise
    if "stop" in ranks.gather("connected"):
        feed.close()
        raise StopRequested
    return feed


def begin(
    state: TrainState,
    config: Config,
    training: Training,
    latest: tuple[Path, dict[str, Any]] | None,
    *,
    accept_new_plan: bool,
) -> None:
    """Restore the newest checkpoint, or begin a new run. Raises BadInputError for a checkpoint that does not fit."""
    if latest is None:
        logger.info("new run, plan %.12s, device %s", state.plan_hash, state.device)
        if config.trainer.start_from:
            start_from(Path(config.trainer.start_from), state.task, config)
        return
    path, checkpoint = latest
    config_json = checks.config_for_checkpoint(config)
    checks.require_model(checkpoint, config)
    checks.require_meaning(checkpoint, config, training.meaning_of_weights, path.name, ", or use --fresh to start over")
    if not accept_new_plan:
        checks.require_same_plan(checkpoint, state.plan_hash, config_json)
    try:
        state.restore(checkpoint)
    except torch.OutOfMemoryError:
        raise  # a RuntimeError, too, but of the machine
    except MISFITS as error:
        remedy = "resume with the former values or version, or use --fresh to start over"
        raise checks.misfit(checkpoint, path.name, config, error, remedy) from None
    logger.info("resumes from %s: step %d, epoch %d", path.name, state.step, state.position.epoch + 1)
    for change in checks.changed_values(checkpoint["config"], config_json):
        logger.info("changed since that checkpoint: %s: %s → %s", *change)
    if 0 < config.trainer.max_steps <= state.step:
        logger.info("trainer.max_steps = %d is reached already; raise it to continue", config.trainer.max_steps)


def start_from(place: Path, task: Task, config: Config) -> None:
    """Load the weights of another run. Raises BadInputError that names its checkpoint."""
    path = find_checkpoint(place)
    checkpoint = read_checkpoint(path)
    checks.require_meaning(checkpoint, config, training_of(config).meaning_of_weights, f"trainer.start_from = {path}")
    try:
        task.load_weights(checkpoint["task"])
    except MISFITS as error:
        remedy = "use the former values or version, or start from another run"
        raise checks.misfit(checkpoint, f"trainer.start_from = {path}", config, error, remedy) from None
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
