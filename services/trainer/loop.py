"""Training loop with a model: steps, health, telemetry. Independent of the model and the particles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from torch import Tensor

from common.atomic_file import Publishing
from services.config.trainer import TrainerConfig
from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.checkpoints.commits import Commits
from services.trainer.checkpoints.guard import Guard
from services.trainer.checkpoints.rollback import roll_back
from services.trainer.checkpoints.weight_drafts import WeightDrafts
from services.trainer.health.health_log import HEALTH_FILE, HealthLog
from services.trainer.health.unhealthy import Unhealthy
from services.trainer.speed.flop_meter import FlopMeter
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit
from services.trainer.stream.fed_batch import FedBatch
from services.trainer.stream.feed import Feed
from services.trainer.stream_loop import StreamLoop
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
    step_done: Callable[[int, Batch], None] = lambda step, batch: None,
    publishing: Publishing = nullcontext,
) -> Literal["finished", "stopped"]:
    """Train until the plan ends, ``max_steps`` is reached, or a stop is requested. Ends with a checkpoint.

    ``publishing``: context of what is appended to files in ``run_dir``, of several nodes.

    Raises BadInputError if training diverges repeatedly.
    """
    guard = Guard(state.watch, HealthLog(run_dir / HEALTH_FILE, publishing))
    drafts = WeightDrafts(state, checkpoints, guard, telemetry, audit, config_json)
    commits = Commits(state, drafts, feed, telemetry, config.checkpoint_every)
    loop = TrainingLoop(state, feed, commits, telemetry, audit, guard, drafts, config, step_done)
    return loop.run(stopped)


class TrainingLoop(StreamLoop):
    """Loop over the steps of a model, judged by a guard."""

    def __init__(
        self,
        state: TrainState,
        feed: Feed,
        commits: Commits,
        telemetry: Telemetry,
        audit: Audit | None,
        guard: Guard,
        drafts: WeightDrafts,
        config: TrainerConfig,
        step_done: Callable[[int, Batch], None],
    ) -> None:
        super().__init__(state, feed, commits, telemetry, audit, max_steps=config.max_steps)
        self._state = state
        self._guard = guard
        self._drafts = drafts
        self._log_every = config.log_every
        self._step_done = step_done
        self._meter = FlopMeter()
        self._metrics: dict[str, Tensor] = {}

    def step(self, batch: Batch) -> None:
        self._metrics = self._meter.step(self._state.task, batch)
        self._telemetry.flops = self._meter.total

    def after_step(self, fed: FedBatch) -> None:
        state, guard, telemetry, metrics = self._state, self._guard, self._telemetry, self._metrics
        state.recent.add(metrics[state.headline])
        guard.note(state.step, fed.batch, metrics)
        if state.step % self._log_every == 0 or state.step == 1:
            state.task.observed(telemetry.scalars(state, metrics | state.recent_mean(), self._feed.waits))
            guard.look()
            telemetry.health(guard.health.label, guard.reason, state.watch.rollbacks)
            telemetry.note(state.step, guard.scalars())
        else:
            telemetry.status("training", state, self._feed.waits)
        telemetry.evaluate(state, fed.batch, fed.ids)

    def step_done(self, batch: Batch) -> None:
        self._step_done(self._state.step, batch)

    def go_back(self, unhealthy: Unhealthy) -> None:
        state, telemetry = self._state, self._telemetry
        roll_back(unhealthy, state, self._commits, self._drafts, self._guard, self._audit)
        telemetry.rolled_back(state.step)
        telemetry.health("critical", str(unhealthy), state.watch.rollbacks)
        telemetry.note(state.step, {"health/state": 2.0, "health/rollbacks": float(state.watch.rollbacks)})
