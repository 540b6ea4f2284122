"""Telemetry of the trainer: its status file, and metrics at log steps. The only place where metrics reach the host."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.invalid_events import lines_of_rules
from common.measurements import values
from common.metrics import LastHour, Rate, Shares, seconds_each
from common.status import Counters, Hop, TrainerStatus
from common.status_files import read_fetchers, write_status
from common.unit_arrays import Array
from services.trainer.progress import TrainingProgress
from services.trainer.speed.gpu_status import gpu_status
from services.trainer.stream.waits import BatchWaits
from services.trainer.telemetry.charts import is_shown
from services.trainer.telemetry.sinks import Sink
from services.trainer.telemetry.tensorboard_sink import TensorBoardSink
from services.trainer.telemetry.trainer_log import TrainerLog
from workloads.base.batch import Batch
from workloads.base.evaluator import Evaluator

if TYPE_CHECKING:
    from torch import Tensor

    from services.trainer.telemetry.validation import ValidationBlock

logger = logging.getLogger(__name__)

_STATUS_S = 0.5
_QUARANTINED_TOLD = 100
_RATES = (
    *("events_per_s", "particles_per_s", "batches_per_s", "s_per_batch", "wait_fraction"),
    *("copied_bytes_per_s", "flops_per_s"),
)
_AT_LOG_STEPS = (
    *("hop/", "stall/"),
    *(f"trainer/{name}" for name in (*_RATES, *Counters.model_fields, "epoch", "seconds", "num_quarantined")),
)
"""Prefixes of the names (common/measurements.py) that are logged at every log step, besides the metrics."""
SCORE = "panel/score"


class Telemetry:
    """Telemetry of one trainer process. A step at which nothing is due costs a read of the clock.

    A rank that is not the first has a status file of its own, and reports nothing else.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        step: int,
        device: str,
        max_steps: int,
        epochs: int,
        rank: int = 0,
        sinks: Sequence[Sink] | None = None,
        evaluator: Evaluator | None = None,
        block: ValidationBlock | None = None,
        evaluate_every: int = 1,
        sources: Sequence[Callable[[], dict[str, float]]] = (),
        closes: Sequence[Callable[[], None]] = (),
    ) -> None:
        """``sinks``: TensorBoard alone, if none are given. ``sources``: more scalars, by name, read at log steps.

        ``closes``: called at the end.
        """
        self._run_dir = run_dir
        self._name = f"trainer-{rank}" if rank else "trainer"
        self._sinks = [TensorBoardSink(run_dir, step)] if sinks is None else sinks
        self._evaluator = evaluator
        self._block = block
        self._evaluate_every = evaluate_every
        self._sources = sources
        self._closes = closes
        self._base = TrainerStatus(pid=os.getpid(), device=device, max_steps=max_steps, epochs=epochs)
        self._newest = self._base
        self._metrics: dict[str, float] = {}
        self._score: float | None = None
        self._events, self._particles, self._steps = Rate(), Rate(), Rate()
        self._copied, self._computed = Rate(), Rate()
        self.flops = 0.0
        """Floating-point operations of this process's steps; 0: not counted."""
        self._waits = Shares()
        self._last_hour = LastHour()
        self._checkpoint = ""
        self._checkpoint_step = 0
        self._written_s = 0.0
        self._log = TrainerLog()

    def scalars(self, state: TrainingProgress, metrics: dict[str, Tensor], waits: BatchWaits) -> dict[str, float]:
        """Log all scalars of a step, and return its metrics: the host waits for the device here, once."""
        self._metrics = to_host(metrics)
        sourced = {name: value for source in self._sources for name, value in source().items()}
        self._base = self._base.model_copy(update={"gpu": gpu_status(sourced)})
        self.status("training", state, waits, force=True)
        if not self._sinks:
            return self._metrics
        told = {f"train/{name}": value for name, value in self._metrics.items()}
        if self._evaluator is not None:
            told |= {f"train/{name}": value for name, value in self._evaluator.settings().items()}
        fetcher = read_fetchers(self._run_dir)  # None: it runs somewhere else
        measured = values(fetcher, self._newest)
        told |= {name: value for name, value in measured.items() if name.startswith(_AT_LOG_STEPS) and is_shown(name)}
        self.note(state.step, told | sourced)
        return self._metrics

    def note(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log numbers that are on the host, by their full names."""
        for sink in self._sinks:
            sink.scalars(scalars, step)

    def evaluate(self, state: TrainingProgress, batch: Batch, ids: Sequence[Mapping[str, Array]] = ()) -> None:
        """Fill the validation block, and evaluate the model with it at intervals; called after each step.

        ``ids``: of the events of each microbatch (FedBatch).
        """
        if self._block is None or self._evaluator is None:
            return
        self._block.add(batch, ids)
        if state.step % self._evaluate_every or self._block.batch is None:
            return
        started_s = time.monotonic()
        found = self._evaluator.evaluate(self._block.batch)
        if found is None:
            return
        self._score = found.scalars.get(SCORE, self._score)
        self.note(state.step, {**found.scalars, "trainer/panel_s": time.monotonic() - started_s})
        for sink in self._sinks:
            sink.histograms(found.histograms, state.step)
            sink.images(found.images, state.step)

    def newest_score(self) -> float | None:
        """Score of the weights, lower is better; None if it was not measured since the last call."""
        score, self._score = self._score, None
        return score if score is not None and math.isfinite(score) else None

    def checkpointed(self, path: Path, step: int) -> None:
        """Log a written checkpoint."""
        self._checkpoint = str(path.relative_to(self._run_dir) if path.is_relative_to(self._run_dir) else path)
        self._checkpoint_step = step
        self._log.checkpointed(time.monotonic(), self._checkpoint)
        for sink in self._sinks:
            sink.flush()

    def rolled_back(self, step: int) -> None:
        """Discard the records of steps after ``step``, from which training continues."""
        for sink in self._sinks:
            sink.go_back(step)
        self._events, self._particles, self._steps = Rate(), Rate(), Rate()  # the counters went back as well
        self._metrics = {}
        self._score = None

    def warn(self, lines: tuple[str, ...]) -> None:
        """Log warnings and add them to the status file, each once."""
        new = tuple(line for line in lines if line not in self._base.warnings)
        for line in new:
            logger.warning("%s", line)
        if new:
            self._base = self._base.model_copy(update={"warnings": (*self._base.warnings, *new)})

    def health(self, label: str, reason: str, rollbacks: int) -> None:
        """Set the health in the status file."""
        self._base = self._base.model_copy(update={"health": label, "health_reason": reason, "rollbacks": rollbacks})

    def status(
        self,
        name: Literal["starting", "training", "finished", "stopped"],
        state: TrainingProgress,
        waits: BatchWaits,
        *,
        force: bool = False,
    ) -> TrainerStatus:
        """Replace the status file, at most twice a second unless forced."""
        now_s = time.monotonic()
        if not force and now_s - self._written_s < _STATUS_S:
            return self._newest
        self._written_s = now_s
        counters, shards = state.position.counters, state.position.shards
        batches = self._batches(now_s, waits)
        batches_per_s = self._steps.update(now_s, state.step)
        set_aside = state.position.set_aside
        self._newest = self._base.model_copy(
            update={
                "state": name,
                "step": state.step,
                "epoch": state.position.epoch,
                "seconds": state.seconds,
                "counters": counters,
                "shards": tuple(shard.counters for shard in shards) if len(shards) > 1 else (),
                "events_per_s": self._events.update(now_s, counters.events_trained),
                "particles_per_s": self._particles.update(now_s, counters.particles_trained),
                "batches_per_s": batches_per_s,
                "s_per_batch": seconds_each(batches_per_s),
                "wait_fraction": batches.wait_get_share,
                "copied_bytes_per_s": self._copied.update(now_s, waits.copied_bytes),
                "flops_per_s": self._computed.update(now_s, self.flops) if self.flops else None,
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
        write_status(self._run_dir, self._name, self._newest)
        self._log.progressed(now_s, self._newest)
        return self._newest

    def waiting(self, state: TrainingProgress, waits: BatchWaits) -> None:
        """Refresh the status file while no step is made: otherwise the waiting would not be visible."""
        self.status(self._newest.state, state, waits)

    def _batches(self, now_s: float, waits: BatchWaits) -> Hop:
        shares = self._waits.update(now_s, {"put": waits.put_s, "get": waits.get_s})
        return Hop(
            wait_put_s=waits.put_s,
            wait_get_s=waits.get_s,
            wait_put_share=min(shares["put"], 1.0),  # a step's time counts at its end
            wait_get_share=min(shares["get"], 1.0),
        )

    def close(self) -> None:
        """Flush and close."""
        for sink in self._sinks:
            sink.close()
        for close in self._closes:
            close()


def to_host(metrics: dict[str, Tensor]) -> dict[str, float]:
    """0-dim tensors as numbers, in one transfer: each on its own would wait for the device again."""
    if not metrics:
        return {}
    import torch  # without metrics it is not needed (counting/)

    together = torch.stack([value.detach().float() for value in metrics.values()])
    return dict(zip(metrics, together.tolist(), strict=True))
