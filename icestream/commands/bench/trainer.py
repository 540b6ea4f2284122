"""Command `icestream bench trainer`: the replay ceiling without a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from common.errors import BadInputError
from common.summary import SUMMARY_FILE
from icestream.commands.bench.batches import batches_from_files, simulated_input
from icestream.reading.workload import load_run_config
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
    num_batches: int,
    steps: int,
    seconds: float,
    as_json: bool,
) -> str:
    """Measured result, for people or as JSON. Raises BadInputError."""
    config = load_run_config(run_dir or {}, toml=toml, assignments=assignments, flags=flags)
    if config.trainer.model == NO_MODEL:
        raise BadInputError("trainer.model = 'none' has no steps to measure: choose a model with --model")
    device = trainer_device(config.trainer.device)
    set_up_torch(config)
    with nullcontext(config) if config.input else simulated_input(config, num_batches) as with_input:
        batches = batches_from_files(with_input, num_batches, device)
        task = training_of(config).task(config.trainer.of_model, step_context(with_input, device, Ranks.alone()))
    ceiling = measure(task, batches, device, seconds=seconds, steps=steps)
    assert ceiling is not None  # it is never stopped
    if run_dir is not None:
        write_ceiling(run_dir, ceiling)
    if as_json:
        return ceiling.model_dump_json(indent=2)
    threads = config.trainer.threads or len(os.sched_getaffinity(0))
    lines = _lines(ceiling, "the inputs" if config.input else "simulated events", threads)
    return "\n".join(lines + (_comparison(run_dir, ceiling) if run_dir else []))


def _lines(ceiling: Ceiling, source: str, threads: int) -> list[str]:
    how = f", {threads} threads" if ceiling.device == "cpu" else ""
    return [
        f"replay ceiling on {ceiling.device}{how}, torch {torch.__version__}",
        f"  {ceiling.batches} batches of {source}: {ceiling.events_per_batch:,.1f} events and"
        f" {ceiling.particles_per_batch:,.1f} particles each",
        f"  {'s/step':<14}{ceiling.s_per_step:>14.5f}  median of {ceiling.rounds} rounds; fastest"
        f" {ceiling.s_per_step_min:.5f}, slowest {ceiling.s_per_step_max:.5f}",
        f"  {'steps/s':<14}{ceiling.steps_per_s:>14,.2f}",
        f"  {'events/s':<14}{ceiling.events_per_s:>14,.1f}",
        f"  {'particles/s':<14}{ceiling.particles_per_s:>14,.1f}",
    ]


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
