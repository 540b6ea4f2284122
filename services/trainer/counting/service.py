"""Trainer process of `--model none`: checkpoint, feed and audit around a loop without a model."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

from common.attempt import attempt_of
from common.errors import BadInputError
from common.process import StopFlag
from common.status import TrainerStatus
from common.status_files import write_status
from common.transport import StopRequested
from services.config.root import Config
from services.config.trainer import TrainerConfig
from services.trainer.counting.checkpoint import PositionCheckpoints
from services.trainer.counting.copier import CountingCopier
from services.trainer.counting.loop import CountingLoop
from services.trainer.plan_change import require_same_plan
from services.trainer.progress import TrainingProgress
from services.trainer.ranks.rank_group import SingleRank
from services.trainer.ranks.rank_place import place_from
from services.trainer.run_checks import config_for_checkpoint, require_data, require_model, require_plan
from services.trainer.stream.audit import audit_of
from services.trainer.stream.feed import Feed
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.checkpoint import read_checkpoint

logger = logging.getLogger(__name__)

_LOCK_WAIT_S = 60.0


def run_counting(run_dir: Path, config: Config, stop: StopFlag, *, accept_new_plan: bool) -> TrainerStatus | None:
    """Count to the end, or until ``stop`` is set; the final status, None if stopped before counting began.

    Raises BadInputError for a user's mistake.
    """
    place = place_from(os.environ)
    if place is not None:
        raise BadInputError(
            f"trainer.model = 'none' counts in one trainer, and this is one of {place.size} ranks (WORLD_SIZE): use"
            " `icestream trainer` without torchrun"
        )
    try:
        keep, attempt = config.trainer.keep_checkpoints, attempt_of(os.environ)
        checkpoints = PositionCheckpoints(
            run_dir, keep, wait_s=_LOCK_WAIT_S, stopped=lambda: bool(stop), attempt=attempt
        )
    except StopRequested:
        return None
    try:
        feed = Feed(
            run_dir,
            config.stored_workload(),
            config.stream,
            config.transport,
            copiers=Copiers(CountingCopier),
            prefetch_units=config.trainer.prefetch_units,
            audit=config.trainer.audit,
            stopped=lambda: bool(stop),
            accept_new_plan=accept_new_plan,
        )
        with closing(feed):
            require_plan(feed.plan_hash, config, run_dir)
            progress = _restored(config, checkpoints, feed.plan_hash, accept_new_plan=accept_new_plan)
            return _count(run_dir, config, progress, feed, checkpoints)
    except StopRequested:
        return None
    finally:
        checkpoints.close()


def _restored(
    config: Config, checkpoints: PositionCheckpoints, plan_hash: str, *, accept_new_plan: bool
) -> TrainingProgress:
    """Progress of the newest checkpoint, or of a new run. Raises BadInputError for another plan or model."""
    if (weights := checkpoints.foreign()) is not None:
        require_model(read_checkpoint(weights), config)
    progress = TrainingProgress(plan_hash, shards=config.stream.shards)
    latest = checkpoints.latest()
    if latest is None:
        logger.info("new run, plan %.12s, without a model", plan_hash)
        return progress
    path, checkpoint = latest
    require_model(checkpoint, config)
    if not accept_new_plan:
        require_same_plan(checkpoint, plan_hash, config_for_checkpoint(config))
    progress.restore(checkpoint, accept_new_plan=accept_new_plan)
    logger.info("resumes from %s: step %d, epoch %d", path.name, progress.step, progress.position.epoch + 1)
    return progress


def settings_without_use(trainer: TrainerConfig) -> list[str]:
    """Names of changed settings without effect, because they need a model."""
    changed = {
        "profile_steps": trainer.profile_steps > 0,
        "replay_batches": trainer.replay_batches > 0,
        "validation.input": bool(trainer.validation.input),
        "wandb.mode": trainer.wandb.mode != "off",
    }
    return [name for name, is_changed in changed.items() if is_changed]


def _count(
    run_dir: Path, config: Config, progress: TrainingProgress, feed: Feed, checkpoints: PositionCheckpoints
) -> TrainerStatus:
    trainer = config.trainer
    warnings = tuple(
        f"trainer.{name} has no effect without a model (trainer.model = 'none')"
        for name in settings_without_use(trainer)
    )
    telemetry = Telemetry(
        run_dir, step=progress.step, device="cpu, without a model", max_steps=trainer.max_steps, epochs=config.epochs
    )
    telemetry.warn(warnings)
    attempt = attempt_of(os.environ)
    audit = audit_of(run_dir, progress.audit_bytes, SingleRank(), config.stream, attempt) if trainer.audit else None
    loop = CountingLoop(progress, feed, checkpoints, telemetry, audit, trainer, config_for_checkpoint(config))
    try:
        telemetry.status("starting", progress, feed.waits, force=True)
        end = loop.run(lambda: feed.stopped)
        status = telemetry.status(end, progress, feed.waits, force=True)
        status = status.model_copy(update={"session_events_per_s": loop.pace.events_per_s})
        write_status(run_dir, "trainer", status)
    finally:
        telemetry.close()
    require_data(status)
    logger.info(
        "the pipeline alone: %.1f events/s after the first steps, of which it waited %.1f s for data",
        loop.pace.events_per_s,
        feed.waits.get_s,
    )
    return status
