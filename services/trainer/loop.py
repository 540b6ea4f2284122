"""The training loop: batches in, steps, checkpoints. Knows neither the model nor what a particle is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

from common.transport import StopRequested
from services.config.trainer import TrainerConfig
from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.checkpoints.guard import Guard, Unhealthy
from services.trainer.checkpoints.rollback import roll_back
from services.trainer.checkpoints.saver import NotFinite, Saved, Saver
from services.trainer.health.health_log import HEALTH_FILE, HealthLog
from services.trainer.speed.memory import memory_scalars
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit
from services.trainer.stream.feed import Feed
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.batch import Batch


def train(
    run_dir: Path,
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
    """Train until the plan ends, ``max_steps`` is reached, or the process is asked to stop. Ends with a checkpoint.

    Raises BadInputError if training diverges again and again.
    """
    started_s = time.monotonic() - state.seconds
    guard = Guard(state.watch, HealthLog(run_dir / HEALTH_FILE), num_lanes=len(state.position.lanes))

    def saved(one: Saved) -> None:
        telemetry.checkpointed(one.path, one.step)
        telemetry.note(one.step, {"checkpoint/stall_s": one.stall_s, "checkpoint/write_s": one.write_s})
        feed.committed(one.position)  # only now may files behind the cursor be evicted

    saver = Saver(state, checkpoints, audit, config_json, saved)

    def commit() -> None:
        guard.look()  # what is saved was judged: training can go back to it
        state.seconds = time.monotonic() - started_s
        try:
            saver.commit(guard.take_worst(), telemetry.newest_score())
        except NotFinite as error:
            raise Unhealthy(str(error)) from None

    def wait() -> None:
        saver.poll()
        if saver.failed:
            feed.want_commit()  # the next commit tells, on every rank; without data none would come
        telemetry.waiting(state, feed.waits)

    def enough() -> bool:
        return 0 < config.max_steps <= state.step

    def train_on() -> bool:
        """Steps until there is a reason to end, and a checkpoint; True if the plan ended."""
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
                state.recent.add(metrics[state.headline])
                state.seconds = time.monotonic() - started_s
                guard.note(state.step, fed.batch, metrics)
                if audit:
                    audit.write(fed.audit_lines)
                if state.step % config.log_every == 0 or state.step == 1:
                    state.task.observed(telemetry.scalars(state, metrics | state.recent_mean(), feed.waits))
                    guard.look()
                    telemetry.health(guard.health.label, guard.reason, state.watch.rollbacks)
                    telemetry.note(state.step, guard.scalars() | memory_scalars(state.device))
                else:
                    telemetry.status("training", state, feed.waits)
                telemetry.evaluate(state, fed.batch)
                if state.step % config.checkpoint_every == 0:
                    commit()
                saver.poll()
                after_step(state.step, fed.batch)
        if exhausted and feed.ended:
            state.position = feed.position  # units without events may stand behind the last batch
        commit()
        try:
            saver.settle()
        except NotFinite as error:
            raise Unhealthy(str(error)) from None
        return exhausted and feed.ended

    feed.on_commit_request = commit
    feed.on_wait = wait
    with closing(saver):
        while True:
            try:
                plan_ended = train_on()
                break
            except Unhealthy as unhealthy:
                roll_back(unhealthy, state, saver, guard, audit)
                telemetry.rolled_back(state.step)
                telemetry.health("critical", str(unhealthy), state.watch.rollbacks)
                telemetry.note(state.step, {"health/state": 2.0, "health/rollbacks": float(state.watch.rollbacks)})
                with suppress(StopRequested):
                    feed.reconnect()
    if plan_ended or enough():
        feed.finished(state.position)
        return "finished"
    return "stopped"
