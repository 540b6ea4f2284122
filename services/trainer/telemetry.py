"""Telemetry of the trainer: its status file, and metrics at log steps. The only place where metrics reach the host."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from common.invalid_events import lines_of_rules
from common.locks import RunAttempt, publishing_of
from common.run_words import training_words
from common.schema import UnitArrays
from common.status import Counters, Hop, LastHour, Rate, Shares, TrainerStatus, read_fetchers, values, write_status
from common.text import duration
from common.unit_arrays import Array
from services.config.root import Config
from services.trainer.health import Health
from services.trainer.sinks import Sink, TensorBoardSink, WandbSink, hyperparameters, run_folder, run_name, started
from services.trainer.speed import GpuSampler, gpu_status, memory_scalars, start_gpu_sampler
from services.trainer.state import TrainState
from services.trainer.units import BatchWaits
from services.trainer.validation import ValidationBlock, made_for
from workloads.base.batch import Batch
from workloads.base.training import Evaluator
from workloads.registry import NO_MODEL

logger = logging.getLogger(__name__)
STEP_LINE_S = 600.0
CHECKPOINT_LINE_S = 60.0


class TrainerLog:
    """Log of a trainer's progress, at most one line in STEP_LINE_S and CHECKPOINT_LINE_S. The time is passed in."""

    def __init__(self) -> None:
        self._step_s = self._checkpoint_s = -math.inf

    def checkpointed(self, now_s: float, name: str) -> None:
        """Log a checkpoint on disk."""
        if now_s - self._checkpoint_s >= CHECKPOINT_LINE_S:
            self._checkpoint_s = now_s
            logger.info("checkpoint %s", name)

    def progressed(self, now_s: float, status: TrainerStatus) -> None:
        """Log the progress, or the end."""
        if status.state in ("finished", "stopped"):
            logger.info(
                "%s at step %d after %s in all: %s events trained, newest checkpoint %s",
                status.state,
                status.step,
                duration(status.seconds),
                f"{status.counters.events_trained:,}",
                status.checkpoint or "none",
            )
        elif status.state == "training" and now_s - self._step_s >= STEP_LINE_S:
            self._step_s = now_s
            logger.info("%s", training_words(status))


_STATUS_S = 0.5
_QUARANTINED_TOLD = 100
_RATES = (*("events_per_s", "particles_per_s", "batches_per_s", "s_per_batch", "wait_fraction"), "copied_bytes_per_s")
_AT_LOG_STEPS = {f"trainer/{name}" for name in (*_RATES, *Counters.model_fields, "epoch", "epochs", "num_quarantined")}
"""Names (common/status.py) that are logged at every log step, besides the metrics and the shares of hops and stalls."""
SCORE = "panel/score"


@dataclass(eq=False)
class Telemetry:
    """Telemetry of one trainer process. A step at which nothing is due costs a read of the clock.

    A rank that is not the first has a status file of its own, and reports nothing else.
    """

    run_dir: Path
    base: TrainerStatus
    """The part of its status that never changes."""
    _: KW_ONLY
    rank: int = 0
    sinks: Sequence[Sink] = ()
    evaluator: Evaluator | None = None
    block: ValidationBlock | None = None
    evaluate_every: int = 1
    sampler: GpuSampler | None = None
    """Sampler of the device, which ends with the telemetry."""

    def __post_init__(self) -> None:
        self._name = f"trainer-{self.rank}" if self.rank else "trainer"
        self._newest = self.base
        self._metrics: dict[str, float] = {}
        self._score: float | None = None
        self.has_new_weights = False
        """True if steps were done since the last evaluation was due."""
        self._events, self._particles, self._steps, self._copied = Rate(), Rate(), Rate(), Rate()
        self._waits = Shares()
        self._last_hour = LastHour()
        self._checkpoint = ""
        self._checkpoint_step = 0
        self._written_s = 0.0
        self._log = TrainerLog()

    def scalars(self, state: TrainState, metrics: dict[str, Tensor], waits: BatchWaits) -> None:
        """Log all scalars of a step: the host waits for the device here, once."""
        self._metrics = to_host(metrics)
        memory = memory_scalars(state.device) if self.sinks else {}
        memory |= self.sampler.read() if self.sampler is not None else {}
        self.base = self.base.model_copy(update={"gpu": gpu_status(memory)})
        self.status("training", state, waits, force=True)
        if not self.sinks:
            return
        told = {f"train/{name}": value for name, value in self._metrics.items()}
        if self.evaluator is not None:
            told |= {f"train/{name}": value for name, value in self.evaluator.settings().items()}
        fetcher = read_fetchers(self.run_dir)  # None: it runs somewhere else
        for name, value in values(fetcher, self._newest).items():
            # Of hops and stalls no seconds, which only grow.
            if name in _AT_LOG_STEPS or (name.startswith(("hop/", "stall/")) and not name.endswith("_s")):
                told[name] = value
        self.note(state.step, told | memory)

    def note(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log numbers that are on the host, by their full names."""
        for sink in self.sinks:
            sink.scalars(scalars, step)

    def stepped(
        self, state: TrainState, batch: Batch, ids: Sequence[Mapping[str, Array]] = (), *, is_last: bool = False
    ) -> None:
        """Fill the validation block, and evaluate the model with it at intervals and at the last step.

        ``ids``: of the events of each microbatch (FedBatch).
        """
        if self.block is not None:
            self.block.add(batch, ids, state.position.epoch)
        self.has_new_weights = True
        if is_last or state.step % self.evaluate_every == 0:
            self.evaluate(state)

    def evaluate(self, state: TrainState) -> None:
        """Evaluate the model with the validation block if that is full, unless no step was done since the last time."""
        due, self.has_new_weights = self.has_new_weights, False  # on all ranks, though the first alone evaluates
        if not due or self.evaluator is None or self.block is None or self.block.batch is None:
            return
        started_s = time.monotonic()
        found = self.evaluator.evaluate(self.block.batch)
        if found is None:
            return
        self._score = found.scalars.get(SCORE, self._score)
        self.note(state.step, {**found.scalars, "trainer/panel_s": time.monotonic() - started_s})
        for sink in self.sinks:
            sink.histograms(found.histograms, state.step)
            sink.images(found.images, state.step)

    def newest_score(self) -> float | None:
        """Score of the weights, lower is better; None if it was not measured since the last call."""
        score, self._score = self._score, None
        return score if score is not None and math.isfinite(score) else None

    def checkpointed(self, path: Path, step: int) -> None:
        """Log a written checkpoint."""
        self._checkpoint = str(path.relative_to(self.run_dir) if path.is_relative_to(self.run_dir) else path)
        self._checkpoint_step = step
        self._log.checkpointed(time.monotonic(), self._checkpoint)
        for sink in self.sinks:
            sink.flush()

    def rolled_back(self, step: int) -> None:
        """Discard the records of steps after ``step``, from which training continues."""
        for sink in self.sinks:
            sink.go_back(step)
        self._events, self._particles, self._steps = Rate(), Rate(), Rate()  # the counters went back as well
        self._metrics = {}
        self._score, self.has_new_weights = None, False

    def warn(self, lines: Sequence[str]) -> None:
        """Log warnings and add them to the status file, each once."""
        new = tuple(line for line in lines if line not in self.base.warnings)
        for line in new:
            logger.warning("%s", line)
        if new:
            self.base = self.base.model_copy(update={"warnings": (*self.base.warnings, *new)})

    def health(self, state: TrainState, health: Health, reason: str) -> None:
        """Set the health in the status file, and log it."""
        rollbacks = state.watch.rollbacks
        told = {"health": health.label, "health_reason": reason, "rollbacks": rollbacks}
        self.base = self.base.model_copy(update=told)
        self.note(state.step, {"health/state": float(health), "health/rollbacks": float(rollbacks)})

    def status(
        self,
        name: Literal["starting", "training", "finished", "stopped", ""],
        state: TrainState,
        waits: BatchWaits,
        *,
        force: bool = False,
    ) -> TrainerStatus:
        """Replace the status file, at most twice a second unless forced. An empty ``name``: the state is the former."""
        now_s = time.monotonic()
        if not force and now_s - self._written_s < _STATUS_S:
            return self._newest
        self._written_s = now_s
        counters, shards = state.position.counters, state.position.shards
        shares = self._waits.update(now_s, {"put": waits.put_s, "get": waits.get_s})
        batches = Hop(
            wait_put_s=waits.put_s,
            wait_get_s=waits.get_s,
            wait_put_share=min(shares["put"], 1.0),  # a step's time counts at its end
            wait_get_share=min(shares["get"], 1.0),
        )
        batches_per_s = self._steps.update(now_s, state.step)
        set_aside = state.position.set_aside
        self._newest = self.base.model_copy(
            update={
                "state": name or self._newest.state,
                "step": state.step,
                "epoch": state.position.epoch,
                "seconds": state.seconds,
                "counters": counters,
                "shards": tuple(shard.counters for shard in shards) if len(shards) > 1 else (),
                "events_per_s": self._events.update(now_s, counters.events_trained),
                "particles_per_s": self._particles.update(now_s, counters.particles_trained),
                "batches_per_s": batches_per_s,
                "s_per_batch": 1.0 / batches_per_s if batches_per_s > 0.0 else 0.0,
                "wait_fraction": batches.wait_get_share,
                "copied_bytes_per_s": self._copied.update(now_s, waits.copied_bytes),
                "batches": batches,
                "last_hour": self._last_hour.update(now_s, {"put": waits.put_s, "get": waits.get_s}),
                "losses": {
                    # JSON can't represent other numbers: the file would be unreadable.
                    loss: self._metrics[loss]
                    for loss in state.shown
                    if math.isfinite(self._metrics.get(loss, math.nan))
                },
                "checkpoint": self._checkpoint,
                "checkpoint_step": self._checkpoint_step,
                "quarantined": list(set_aside[-_QUARANTINED_TOLD:]),
                "num_quarantined": len(set_aside),
                "invalid": lines_of_rules(state.position.broken_rules),
            }
        )
        write_status(self.run_dir, self._name, self._newest)
        self._log.progressed(now_s, self._newest)
        return self._newest

    def close(self) -> None:
        """Flush and close."""
        for sink in self.sinks:
            sink.close()
        if self.sampler is not None:
            self.sampler.close()


def to_host(metrics: dict[str, Tensor]) -> dict[str, float]:
    """0-dim tensors as numbers, in one transfer: each on its own would wait for the device again."""
    if not metrics:
        return {}
    together = torch.stack([value.detach().float() for value in metrics.values()])
    return dict(zip(metrics, together.tolist(), strict=True))


ReadValidationEvents = Callable[[Config, Path], Iterable[UnitArrays]]
"""Reader of the validation events from files, unit by unit. Given the run directory, too; raises BadInputError that
names the file."""


def open_telemetry(
    run_dir: Path,
    config: Config,
    state: TrainState,
    evaluator: Evaluator,
    config_json: str,
    read_validation_events: ReadValidationEvents,
    *,
    rank: int = 0,
    local_rank: int | None = None,
    attempt: RunAttempt | None = None,
) -> Telemetry:
    """Telemetry of a rank. ``config_json``: without secrets. Raises BadInputError for a setting that can't be met.

    ``local_rank``: its number in its run directory, if that is of one of several nodes.

    ``attempt``: of several nodes, whose shared folder has all files but the status file; else the run directory does.

    A ``rank`` that is not the first has its status file, and nothing else.
    """
    base = TrainerStatus(
        pid=os.getpid(), device=str(state.device), max_steps=config.trainer.max_steps, epochs=config.epochs
    )
    every = config.trainer.validation.every
    if rank:
        return Telemetry(run_dir, base, rank=rank if local_rank is None else local_rank, evaluate_every=every)
    folder, publishing = attempt.shared if attempt is not None else run_dir, publishing_of(attempt)
    settings = hyperparameters(config_json)
    scores = (SCORE, *(f"train/{name}" for name in state.shown))
    block = None
    if _has_block(config):
        settings_of_block = made_for(config.trainer.validation, config.stream.held_out)
        block = ValidationBlock(folder, config.stored_workload(), settings_of_block, state.device, publishing)
        if block.batch is None and not fills_block(config):
            block.write(read_validation_events(config, folder))
    sinks: list[Sink] = []
    if config.trainer.wandb.mode != "off":
        name = run_name(folder, started(run_folder(folder)))
        sinks.append(WandbSink(folder, config.trainer.wandb, name, settings))
    sinks.append(TensorBoardSink(folder, state.step, settings, scores, publishing))
    return Telemetry(
        run_dir,
        base,
        sinks=sinks,
        evaluator=evaluator,
        block=block,
        evaluate_every=every,
        sampler=start_gpu_sampler(state.device),
    )


def fills_block(config: Config) -> bool:
    """True if the validation block is made of the run's first events."""
    return _has_block(config) and not (config.trainer.validation.input or config.stream.held_out)


def _has_block(config: Config) -> bool:
    return config.trainer.validation.events > 0 and config.trainer.model != NO_MODEL
