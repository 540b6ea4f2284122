"""Rollback to the last good checkpoint, with lower learning rates; the run ends if repeated rollbacks do not help."""

from __future__ import annotations

import contextlib
import logging

from common.errors import BadInputError
from services.trainer.checkpoints.commits import Commits
from services.trainer.checkpoints.guard import Guard
from services.trainer.checkpoints.weight_drafts import WeightDrafts
from services.trainer.health.unhealthy import NotFinite, Unhealthy
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit

logger = logging.getLogger(__name__)


def roll_back(
    unhealthy: Unhealthy,
    state: TrainState,
    commits: Commits,
    drafts: WeightDrafts,
    guard: Guard,
    audit: Audit | None,
) -> None:
    """Roll ``state`` back, weights and stream. It is saved at once, so that a restart uses the lower rates as well.

    The caller restarts the feed at the new position. Raises BadInputError once the allowed rollbacks are used up.
    """
    with contextlib.suppress(NotFinite):  # a checkpoint being written may be a good one
        commits.settle()
    watch, factor = guard.watch, guard.watch.config.learning_rate_factor
    good = drafts.good.restorable()
    if not watch.may_roll_back:
        _write(guard, unhealthy, "stopped")
        raise BadInputError(
            f"training diverged: {unhealthy}. Going back {watch.rollbacks} time(s) did not help; the newest good "
            f"checkpoint is that of step {good['step']}. {guard.log.path} names the batches at fault. Lower the "
            "learning rates, or look at that data; to try again from there, raise trainer.health.rollbacks"
        )
    _write(guard, unhealthy, f"went back to step {good['step']}, learning rates times {factor:g}")
    logger.error(
        "training: %s. It goes back to step %d, with learning rates times %g (%d of %d times); see %s",
        unhealthy,
        good["step"],
        factor,
        watch.rollbacks + 1,
        watch.config.rollbacks,
        guard.log.path,
    )
    seconds, counted = state.seconds, watch.rollbacks
    state.restore(good, accept_new_plan=False)
    state.seconds = seconds  # training time is not rolled back
    watch.rollbacks = counted
    watch.rolled_back(state.step)
    state.task.scale_learning_rates(factor)
    guard.begin_again()
    # On disk first: a restart from a later checkpoint would miss the lines that are cut off.
    commits.replace(drafts.take_restored())
    if audit is not None:
        audit.cut(state.audit_bytes)


def _write(guard: Guard, unhealthy: Unhealthy, action: str) -> None:
    for taken, verdict in unhealthy.faults:
        guard.log.write(taken, verdict, action)
