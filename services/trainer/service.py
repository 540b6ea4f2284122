"""The trainer process: device, model, checkpoint and feed put together around the loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from common.errors import BadInputError
from common.plan_hash import plan_hash
from common.process import StopFlag
from common.redact import without_secrets
from common.status import TrainerStatus, write_status
from common.transport import StopRequested
from services.config import Config
from services.trainer.audit import Audit
from services.trainer.changed_settings import changed_settings
from services.trainer.checkpoint import Checkpoints
from services.trainer.device_environment import be_deterministic
from services.trainer.evaluator import Evaluator
from services.trainer.feed import Feed
from services.trainer.gauges import Gauges
from services.trainer.health import update_limits
from services.trainer.loop import train
from services.trainer.open_telemetry import open_telemetry
from services.trainer.state import Task, TrainState
from services.trainer.wgan.panel import WganPanel
from services.trainer.wgan.task import WganTask

logger = logging.getLogger(__name__)

_LOCK_WAIT_S = 60.0

TASKS: dict[str, Callable[[Config, torch.device], Task]] = {
    "wgan": lambda config, device: WganTask(
        config.trainer.wgan,
        device,
        config.seed,
        limits=update_limits(config.trainer.health),
        bf16=config.trainer.precision == "bf16",
        threads=config.trainer.threads or len(os.sched_getaffinity(0)),
    ),
}


def run_trainer(run_dir: Path, config: Config, stop: StopFlag, *, accept_new_plan: bool) -> TrainerStatus | None:
    """Train to the end, or until asked to stop; the final status, None if stopped before anything began.

    Raises BadInputError for a user's mistake.
    """
    device = pick_device(config.trainer.device)
    set_up_torch(config)
    checkpoints = None
    try:
        checkpoints = Checkpoints(
            run_dir, config.trainer.keep_checkpoints, wait_s=_LOCK_WAIT_S, stopped=lambda: bool(stop)
        )
        return _resume(run_dir, config, stop, device, checkpoints, accept_new_plan=accept_new_plan)
    except StopRequested:
        return None
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _resume(
    run_dir: Path,
    config: Config,
    stop: StopFlag,
    device: torch.device,
    checkpoints: Checkpoints,
    *,
    accept_new_plan: bool,
) -> TrainerStatus:
    latest = checkpoints.latest()
    workload = config.stored_workload()
    feed = Feed(
        run_dir,
        workload,
        config.stream,
        config.transport,
        device=device,
        prefetch_units=config.trainer.prefetch_units,
        audit=config.trainer.audit,
        stopped=lambda: bool(stop),
        accept_new_plan=accept_new_plan,
    )
    try:
        if feed.plan_hash != plan_hash(workload, config.stream, config.seed):
            remedy = "leave out its own --set, -c and environment, and start it again"
            if config.transport.connect:
                remedy = f"copy the config.json of the run into {run_dir}, or give the same -c"
            raise BadInputError(f"this trainer's seed or stream settings are not those of the run: {remedy}")
        state = TrainState(
            TASKS[config.trainer.model](config, device),
            device,
            feed.plan_hash,
            lanes=config.stream.lanes,
            health=config.trainer.health,
        )
        if latest is not None:
            path, checkpoint = latest
            state.restore(checkpoint, accept_new_plan=accept_new_plan)
            logger.info("goes on from %s: step %d, %s", path.name, state.step, state.position.cursors)
            for line in changed_settings(checkpoint["config"], _shown(config)):
                logger.info("changed since that checkpoint: %s", line)
        else:
            logger.info("new run, plan %.12s, device %s", feed.plan_hash, device)
        for warning in config.trainer.wgan.warnings():
            logger.warning(warning)
        return _train(run_dir, config, state, feed, checkpoints, stop)
    finally:
        feed.close()


def set_up_torch(config: Config) -> None:
    """What holds for the whole process, whatever the task."""
    torch.set_num_threads(1)  # networks as small as these are slower with several: the task works off parts at once
    if config.trainer.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(config.seed)
    if config.trainer.deterministic:
        be_deterministic()


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one. Raises BadInputError if it isn't there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInputError(f"trainer.device = {name!r}: torch sees no CUDA device; use --device cpu, or auto")
    return torch.device(name)


def _train(
    run_dir: Path, config: Config, state: TrainState, feed: Feed, checkpoints: Checkpoints, stop: StopFlag
) -> TrainerStatus:
    telemetry = open_telemetry(run_dir, config, state, _evaluator(config, state.task), _shown(config))
    audit = Audit.open(run_dir, state.audit_bytes) if config.trainer.audit else None
    if 0 < config.trainer.max_steps <= state.step:
        logger.info("trainer.max_steps = %d is reached already; a larger one goes on", config.trainer.max_steps)
    gauges = Gauges(run_dir, config.trainer, state.device)
    try:
        telemetry.status("starting", state, feed.waits, force=True)
        end = train(
            run_dir,
            state,
            feed,
            checkpoints,
            telemetry,
            audit,
            config.trainer,
            _shown(config),
            lambda: bool(stop),
            gauges.stepped,
        )
        status = telemetry.status(end, state, feed.waits, force=True)
        status = gauges.close(state, status, stopped=lambda: bool(stop))
        write_status(run_dir, "trainer", status)
    finally:
        telemetry.close()
        if audit is not None:
            audit.close()
    if end_without_data(status):
        raise BadInputError(f"there was nothing to train on: {status.counters.model_dump_json()}")
    return status


def _evaluator(config: Config, task: Task) -> Evaluator:
    assert isinstance(task, WganTask)  # the one model that there is
    return WganPanel(task, config.seed)


def _shown(config: Config) -> str:
    """The configuration as a checkpoint may hold it: checkpoints are passed on, with no secret in them."""
    inputs = tuple(without_secrets(text) for text in config.input)
    return config.model_copy(update={"input": inputs}).model_dump_json()


def end_without_data(status: TrainerStatus) -> bool:
    """True if the whole plan was read and no event was fit for training."""
    return status.state == "finished" and status.counters.events_trained == 0
