"""Command `icestream bench overfit`: one batch, trained again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from icestream.commands.bench.batches import batches_from_files
from icestream.commands.bench.trainer import trainable
from icestream.commands.bench.units import with_inputs
from icestream.reading.workload import load_run_config
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import set_up_torch, step_context, trainer_device, training_of
from workloads.base.batch import Batch
from workloads.base.task import Task

_ROWS = 10
"""Number of steps whose metrics are read, beside the first one."""


class StepMetrics(BaseModel):
    """Metrics of one step."""

    model_config = ConfigDict(frozen=True)

    step: int
    metrics: dict[str, float]


class Overfit(BaseModel):
    """Course of the training on one batch."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    workload: str
    model: str
    device: str
    events: int
    particles: int
    headline: str
    """Metric of the model that ``start`` and ``end`` are about."""
    start: float
    """Value in the first step."""
    end: float
    """Value in the last step."""
    steps: int
    """Steps done: fewer than requested if the headline metric was not finite."""
    events_per_s: float
    """Rate after the first step."""
    course: list[StepMetrics]


def bench_overfit(
    *, toml: Path | None, assignments: Sequence[str], flags: Mapping[str, Any], steps: int, as_json: bool
) -> str:
    """Measured result, for people or as JSON. Raises BadInputError."""
    config = trainable(load_run_config({}, toml=toml, assignments=assignments, flags=flags))
    device = trainer_device(config.trainer.device)
    set_up_torch(config, device)
    training = training_of(config)
    with with_inputs(config, config.stream.batch_events) as config:
        (batch,) = batches_from_files(config, 1, device)
        task = training.task(config.trainer.of_model, step_context(config, device, Ranks.alone()))
    names = list(dict.fromkeys((training.headline, *training.shown)))
    course, events_per_s = _train(task, batch, steps, names)
    result = Overfit(
        workload=config.workload,
        model=config.trainer.model,
        device=str(device),
        events=batch.num_events,
        particles=batch.num_particles,
        headline=training.headline,
        start=course[0].metrics[training.headline],
        end=course[-1].metrics[training.headline],
        steps=course[-1].step,
        events_per_s=events_per_s,
        course=course,
    )
    return result.model_dump_json(indent=2) if as_json else "\n".join(_lines(result, steps))


def _train(task: Task, batch: Batch, steps: int, names: Sequence[str]) -> tuple[list[StepMetrics], float]:
    """Metrics of about _ROWS steps, the first and the last of all among them, and the rate in events/s.

    ``names``: metrics that are read, if the step has them; the training ends when the first is not finite.
    """
    every = -(-steps // _ROWS)
    course: list[StepMetrics] = []
    started_s = 0.0
    for step in range(1, steps + 1):
        metrics = task.step(batch)
        if step == 1 or step == steps or step % every == 0:
            on_host = {name: float(value) for name, value in metrics.items()}  # waits for the device
            task.observed(on_host)
            course.append(StepMetrics(step=step, metrics={name: on_host[name] for name in names if name in on_host}))
            if not math.isfinite(on_host[names[0]]):
                break
        if step == 1:
            started_s = time.perf_counter()
    rest = course[-1].step - 1
    return course, rest * batch.num_events / (time.perf_counter() - started_s) if rest else 0.0


def _lines(result: Overfit, steps: int) -> list[str]:
    names = list(result.course[0].metrics)
    wide = max(12, *(len(name) + 2 for name in names))
    lines = [
        f"{result.model} on {result.device}, one batch of {result.events:,} events and {result.particles:,} particles",
        f"  {'step':>8}" + "".join(f"{name:>{wide}}" for name in names),
        *(f"  {row.step:>8,}" + "".join(f"{row.metrics[name]:>{wide}.5g}" for name in names) for row in result.course),
    ]
    if result.steps < steps:
        lines.append(f"  ended after {result.steps:,} of {steps:,} steps: {result.headline} is not finite")
    lines.append(
        f"  {result.headline}: {result.start:.5g} → {result.end:.5g} in {result.steps:,} steps,"
        f" {result.events_per_s:,.1f} events/s"
    )
    return lines
