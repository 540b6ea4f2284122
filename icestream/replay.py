"""Replay ceiling of a configuration: steps on batches that are made here, without a run, its processes and its feed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from common.errors import BadInputError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.messages import Unit
from common.plan import Blocks, SlotCapacity, plan_block
from common.schema import UnitArrays
from icestream.reading import decoded, file_settings, staging
from services.config.root import Config
from services.config.settings import make_ranges
from services.trainer.copier import copy_to_host
from services.trainer.ranks import Ranks
from services.trainer.service import set_up_torch, step_context, trainer_device, training_of
from services.trainer.speed import Ceiling, measure, peak_bytes, reset_peak
from workloads.base.batch import Batch, Microbatch

SizeMeasured = tuple[int, Ceiling | None, int]
"""Events of a batch, its ceiling (None: it does not fit the memory), and the peak memory in bytes."""


def set_up_device(config: Config) -> tuple[torch.device, str]:
    """Return the device of `trainer.device`, and a title that names it; torch is set up for it."""
    device = trainer_device(config.trainer.device)
    set_up_torch(config, device)
    threads = f", {config.trainer.threads or len(os.sched_getaffinity(0))} threads" if device.type == "cpu" else ""
    return device, f"replay ceiling on {device}{threads}, torch {torch.__version__}"


def measure_sizes(
    config: Config, sizes: Sequence[int], device: torch.device, *, num_batches: int, steps: int, seconds: float
) -> list[SizeMeasured]:
    """Measure batches of these numbers of events, up to the first that does not fit the memory."""
    measured: list[SizeMeasured] = []
    for size in sizes:
        reset_peak(device)
        stream = config.stream.model_copy(update={"batch_events": size})
        of_size = config.model_copy(update={"stream": stream})
        ceiling = None
        try:
            batches = batches_from_files(of_size, num_batches, device)
            task = training_of(of_size).task(config.trainer.of_model, step_context(of_size, device, Ranks.alone()))
            ceiling = measure(task, batches, device, seconds=seconds, steps=steps)
        except (torch.OutOfMemoryError, MemoryError):
            pass
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):  # that is how torch tells it of the host's memory
                raise
        measured.append((size, ceiling, peak_bytes(device)))
        if ceiling is None:
            break
    return measured


def batches_from_files(config: Config, num_batches: int, device: torch.device) -> list[Batch]:
    """Return the first batches of a run with this configuration, fewer if the files have no more.

    Of several ranges, the first is used. Outliers are excluded, as in a run, and discarded. Raises BadInputError.
    """
    with closing(_batches(config, device)) as all_batches:
        batches = list(islice(all_batches, num_batches))
    if not batches:
        raise BadInputError(f"{', '.join(config.input)}: no event is fit for training")
    return batches


def _batches(config: Config, device: torch.device) -> Generator[Batch]:
    """Cut batches of consecutive microbatches with the events of a step; the last one may be smaller."""
    taken: list[Microbatch] = []
    num_events = 0
    with closing(_units(config)) as units:
        for unit, arrays in units:
            for index in range(len(arrays.microbatch_bounds) - 1):
                microbatch = copy_to_host(arrays, unit.epoch, unit.k, index)
                taken.append(replace(microbatch, number=len(taken)).to(device))
                num_events += taken[-1].num_events
                if num_events >= config.stream.batch_events:
                    yield Batch(tuple(taken))
                    taken, num_events = [], 0
    if taken:
        yield Batch(tuple(taken))


def _units(config: Config) -> Generator[tuple[Unit, UnitArrays]]:
    """Plan and decode the files in this process: units with their arrays, valid until the next one is requested."""
    workload, stream = config.stored_workload(), config.stream
    settings = replace(file_settings(config), cache_dir=None)  # the run's own may be in use
    first, *_ = make_ranges(config.input, config.fetcher.ranges)
    next_k = 0
    with Remotes(settings.access) as remotes, tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        inventory = expand(first.inputs, remotes)
        order = Blocks(len(inventory), stream, config.seed, epochs=1)
        for block in range(order.per_epoch):
            files = {number: inventory[number] for number in order.files(block)}
            with staging(workload, settings, remotes, list(files.values()), lambda reason: None) as stage:
                staged = [stage(number, file) for number, file in files.items()]
                units = plan_block(
                    block, next_k, 0, staged, capacity=SlotCapacity(workload, stream), stream=stream, seed=config.seed
                )
                next_k += len(units)
                for unit, arrays, _ in decoded(units, workload, stream, config.seed, Path(folder), "trained"):
                    yield unit, arrays
