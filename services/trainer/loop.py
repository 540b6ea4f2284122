"""The training loop: batches in, steps, checkpoints. Knows neither the model nor what a particle is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Literal

from services.trainer.audit import Audit
from services.trainer.batch import Batch
from services.trainer.checkpoint import Checkpoints
from services.trainer.config import TrainerConfig
from services.trainer.feed import Feed
from services.trainer.state import TrainState
from services.trainer.telemetry import Telemetry


def train(
    state: TrainState,
    feed: Feed,
    checkpoints: Checkpoints,
    telemetry: Telemetry,
    audit: Audit | None,
    config: TrainerConfig,
    config_json: str,
    stopped: Callable[[], bool],
    after_step: Callable[[int, Batch], None] = lambda step, batch: None,
) -> Literal["finished", "stopped"]:
    """Train until the plan ends, ``max_steps`` is reached, or the process is asked to stop. Ends with a checkpoint."""
    started_s = time.monotonic() - state.seconds

    def commit() -> None:
        """Save first; only then may files behind the cursor be evicted."""
        state.seconds = time.monotonic() - started_s
        state.audit_bytes = audit.commit() if audit else ()
        path = checkpoints.save(state.step, state.checkpoint(config_json))
        telemetry.checkpointed(path, state.step)
        feed.committed(state.position)

    def enough() -> bool:
        return 0 < config.max_steps <= state.step

    feed.on_commit_request = commit
    feed.on_wait = lambda: telemetry.waiting(state, feed.waits)
    exhausted = False
    with closing(feed.batches(state.position)) as batches:
        while not enough() and not stopped():
            fed = next(batches, None)
            if fed is None:
                exhausted = True
                break
            metrics = state.task.step(fed.batch)
            state.step += 1
            state.position = fed.position
            state.w_gap.add(metrics["w_gap"])
            state.seconds = time.monotonic() - started_s
            if audit:
                audit.write(fed.audit_lines)
            if state.step % config.log_every == 0 or state.step == 1:
                telemetry.scalars(state, metrics | {"w_gap_ma_500": state.w_gap.mean()}, feed.waits)
            else:
                telemetry.status("training", state, feed.waits)
            if state.step % config.checkpoint_every == 0:
                commit()
            after_step(state.step, fed.batch)
    plan_ended = exhausted and feed.ended
    if plan_ended:
        state.position = feed.position  # units without events may stand behind the last batch
    commit()
    if plan_ended or enough():
        feed.finished(state.position)
        return "finished"
    return "stopped"
