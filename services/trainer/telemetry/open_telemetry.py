"""Telemetry built from the configuration: sinks, validation block and samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from common.atomic_file import Publishing
from common.attempt import RunAttempt, publishing_of
from common.unit_arrays import UnitArrays
from services.config.root import Config
from services.trainer.speed.gpu_sampler import start_gpu_sampler
from services.trainer.speed.memory import memory_scalars
from services.trainer.state import TrainState
from services.trainer.telemetry.hyperparameters import hyperparameters
from services.trainer.telemetry.sinks import Sink
from services.trainer.telemetry.stored_block import stored_block
from services.trainer.telemetry.telemetry import SCORE, Telemetry
from services.trainer.telemetry.tensorboard_sink import TensorBoardSink, run_folder, started
from services.trainer.telemetry.validation import ValidationBlock
from workloads.base.evaluator import Evaluator

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
    if rank:
        device, max_steps = str(state.device), config.trainer.max_steps
        return Telemetry(
            run_dir,
            step=state.step,
            device=device,
            max_steps=max_steps,
            epochs=config.epochs,
            sinks=[],
            rank=rank if local_rank is None else local_rank,
        )
    folder, publishing = attempt.shared if attempt is not None else run_dir, publishing_of(attempt)
    settings = hyperparameters(config_json)
    scores = (SCORE, *(f"train/{name}" for name in state.shown))
    block = None
    if config.trainer.validation.events:
        block = _block(folder, config, state.device, read_validation_events, publishing)
    sinks: list[Sink] = []
    if config.trainer.wandb.mode != "off":
        from services.trainer.telemetry.wandb_sink import WandbSink, run_name  # an optional extra

        name = run_name(folder, started(run_folder(folder)))
        sinks.append(WandbSink(folder, config.trainer.wandb, name, settings))
    sinks.append(TensorBoardSink(folder, state.step, settings, scores, publishing))
    sampler = start_gpu_sampler(state.device)
    sources: list[Callable[[], dict[str, float]]] = [partial(memory_scalars, state.device)]
    sources += [sampler.read] if sampler is not None else []
    return Telemetry(
        run_dir,
        step=state.step,
        device=str(state.device),
        max_steps=config.trainer.max_steps,
        epochs=config.epochs,
        sinks=sinks,
        evaluator=evaluator,
        block=block,
        evaluate_every=config.trainer.validation.every,
        sources=sources,
        closes=[sampler.close] if sampler is not None else [],
    )


def fills_block(config: Config) -> bool:
    """True if the validation block is made of the run's first events."""
    validation = config.trainer.validation
    return validation.events > 0 and not (validation.input or config.stream.held_out)


def _block(
    run_dir: Path,
    config: Config,
    device: torch.device,
    read_validation_events: ReadValidationEvents,
    publishing: Publishing,
) -> ValidationBlock:
    validation, held_out = config.trainer.validation, config.stream.held_out
    block = ValidationBlock(run_dir, validation, device, held_out=held_out, publishing=publishing)
    if block.batch is None and not fills_block(config):
        read = partial(read_validation_events, config, run_dir)
        schema = config.stored_workload()
        block.batch = stored_block(run_dir, schema, block.made_for, device, read, publishing)
    return block
