"""Command `icestream bench trainer`: the replay ceiling without a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from common.errors import BadInputError
from common.summary import SUMMARY_FILE
from icestream.commands.bench.batches import batches_from_files, events_for
from icestream.commands.bench.sweep import measure_sizes, sweep_lines
from icestream.commands.bench.units import with_inputs
from icestream.reading.workload import load_run_config
from services.config.root import Config
from services.config.trainer import NO_MODEL
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import set_up_torch, step_context, trainer_device, training_of
from services.trainer.speed.replay import Ceiling, measure, write_ceiling


def bench_trainer(
    run_dir: Path | None,
    *,
    toml: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, Any],
    sizes: Sequence[int],
    num_batches: int,
    steps: int,
    seconds: float,
    as_json: bool,
) -> str:
    """Measured result, for people or as JSON; of each size of a batch if there are several. Raises BadInputError."""
    if len(sizes) == 1:
        flags = {**flags, "stream.batch_events": sizes[0]}
    config = trainable(load_run_config(run_dir or {}, toml=toml, assignments=assignments, flags=flags))
    device = trainer_device(config.trainer.device)
    set_up_torch(config, device)
    threads = config.trainer.threads or len(os.sched_getaffinity(0))
    source = "the inputs" if config.input else "simulated events"
    if len(sizes) > 1:
        trials = measure_sizes(
            config, sorted(set(sizes)), device, num_batches=num_batches, steps=steps, seconds=seconds
        )
        if as_json:
            return json.dumps([trial.model_dump() for trial in trials], indent=2)
        return "\n".join([_title(str(device), threads), f"  {num_batches} batches of {source}", *sweep_lines(trials)])
    with with_inputs(config, events_for(config, num_batches)) as config:
        batches = batches_from_files(config, num_batches, device)
        task = training_of(config).task(config.trainer.of_model, step_context(config, device, Ranks.alone()))
    ceiling = measure(task, batches, device, seconds=seconds, steps=steps)
    assert ceiling is not None  # it is never stopped
    if run_dir is not None:
        write_ceiling(run_dir, ceiling)
    if as_json:
        return ceiling.model_dump_json(indent=2)
    return "\n".join(_lines(ceiling, source, threads) + (_comparison(run_dir, ceiling) if run_dir else []))


def trainable(config: Config) -> Config:
    """The configuration. Raises BadInputError if it has no model."""
    if config.trainer.model == NO_MODEL:
        raise BadInputError("trainer.model = 'none' has no steps to measure: choose a model with --model")
    return config


def _lines(ceiling: Ceiling, source: str, threads: int) -> list[str]:
    return [
        _title(ceiling.device, threads),
        f"  {ceiling.batches} batches of {source}: {ceiling.events_per_batch:,.1f} events and"
        f" {ceiling.particles_per_batch:,.1f} particles each",
        f"  {'s/step':<14}{ceiling.s_per_step:>14.5f}  median of {ceiling.rounds} rounds; fastest"
        f" {ceiling.s_per_step_min:.5f}, slowest {ceiling.s_per_step_max:.5f}",
        f"  {'steps/s':<14}{ceiling.steps_per_s:>14,.2f}",
        f"  {'events/s':<14}{ceiling.events_per_s:>14,.1f}",
        f"  {'particles/s':<14}{ceiling.particles_per_s:>14,.1f}",
    ]


def _title(device: str, threads: int) -> str:
    how = f", {threads} threads" if device == "cpu" else ""
    return f"replay ceiling on {device}{how}, torch {torch.__version__}"


def _comparison(run_dir: Path, ceiling: Ceiling) -> list[str]:
    try:
        rate = float(json.loads((run_dir / SUMMARY_FILE).read_text()).get("session_events_per_s", 0.0))
    except FileNotFoundError:
        rate = 0.0
    if not rate:
        return [f"  {run_dir} has no summary with a pace yet: nothing to compare with"]
    return [
        f"  the last session of {run_dir} trained {rate:,.1f} events/s after its first steps:",
        f"  {'pipeline ÷ ceiling':<18}{rate / ceiling.events_per_s:>10.2f}",
    ]
