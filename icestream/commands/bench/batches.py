"""Training batches without a run: files planned, decoded and cut in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.files.inputs import expand, local_path
from common.files.remotes import Remotes
from common.messages import Unit
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block
from common.ragged import unit_arrays
from common.unit_arrays import UnitArrays
from services.config.root import Config
from services.decoder.decode import Decode
from services.fetcher.inventory.ranges import make_ranges
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import NotStaged, Stage
from services.trainer.stream.copier import copy_to_host
from workloads import registry
from workloads.base.batch import Batch, Microbatch

_SPARE = 1.25
"""Factor on the number of simulated events: a batch may be larger than requested."""


def batches_from_files(config: Config, num_batches: int, device: torch.device) -> list[Batch]:
    """First batches of a run with this configuration, fewer if the files have no more. Raises BadInputError.

    Of several ranges, the first is used. Outliers are excluded, as in a run, and discarded.
    """
    first, *_ = make_ranges(config.input, config.fetcher.ranges)
    with (
        tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder,
        Remotes(config.remote_access()) as remotes,
        closing(Cache(Path(folder), Path(folder))) as cache,
    ):
        capacity = SlotCapacity(config.stored_workload(), config.stream)
        stage = Stage(cache, config.stored_workload(), config.stream, capacity, remotes.fetch)
        units = _units(config, expand(first.inputs, remotes), stage, capacity)
        batches = list(islice(_batches(config, _decoded(config, units, Path(folder)), device), num_batches))
    if not batches:
        raise BadInputError(f"{', '.join(config.input)}: no event is fit for training")
    return batches


@contextmanager
def simulated_input(config: Config, num_batches: int) -> Iterator[Config]:
    """Configuration whose input are simulated events for ``num_batches`` batches; deleted at the end of the block.

    Raises BadInputError if the workload has no simulator.
    """
    if (sample := registry.sample(config.workload)) is None:
        raise BadInputError(f"the workload {config.workload} has no simulator: name files with -i")
    num_events = int(num_batches * config.stream.batch_events * _SPARE) + config.stream.lanes
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        sample(Path(folder), num_events, config.seed)
        yield config.model_copy(update={"input": (folder,)})


def _units(config: Config, inventory: list[SourceFile], stage: Stage, capacity: SlotCapacity) -> Iterator[Unit]:
    """Units in the order of the plan; files are staged block by block, as units are requested."""
    order = Blocks(len(inventory), config.stream, config.seed, epochs=1)
    next_k = 0
    for block in range(order.per_epoch):
        staged = [_staged(stage, file, inventory[file]) for file in order.files(block)]
        yield from (
            units := plan_block(block, next_k, 0, staged, capacity=capacity, stream=config.stream, seed=config.seed)
        )
        next_k += len(units)
        for file in order.files(block):
            if local_path(inventory[file].url) is None:
                stage.cache.drop(inventory[file])


def _staged(stage: Stage, file: int, source: SourceFile) -> StagedFile:
    found = stage(file, source, None)
    if isinstance(found, NotStaged):
        raise BadInputError(f"{found.reason}; try again later")
    return found


def _decoded(config: Config, units: Iterator[Unit], folder: Path) -> Iterator[tuple[Unit, UnitArrays]]:
    """Units with their arrays, valid until the next one is requested."""
    workload = config.stored_workload()
    slot = np.zeros(config.stream.slot_bytes, np.uint8)
    with closing(ContentReader(workload, shuffled=config.stream.shuffle)) as reader:
        decode = Decode(workload, config.stream, config.seed, folder, reader)
        for unit in units:
            layout, _ = decode(unit, slot)
            yield unit, unit_arrays(slot, workload, layout)


def _batches(config: Config, decoded: Iterator[tuple[Unit, UnitArrays]], device: torch.device) -> Iterator[Batch]:
    """Batches of consecutive microbatches with the events of a step of all lanes; the last one may be smaller."""
    enough = config.stream.lane_batch_events * config.stream.lanes
    taken: list[Microbatch] = []
    num_events = 0
    for unit, arrays in decoded:
        for index in range(len(arrays.microbatch_bounds) - 1):
            microbatch = copy_to_host(arrays, unit.epoch, unit.k, index)
            taken.append(_on(device, replace(microbatch, lane=unit.k % config.stream.lanes)))
            num_events += taken[-1].num_events
            if num_events >= enough:
                yield Batch(tuple(taken))
                taken, num_events = [], 0
    if taken:
        yield Batch(tuple(taken))


def _on(device: torch.device, microbatch: Microbatch) -> Microbatch:
    return replace(
        microbatch,
        offsets_E1=microbatch.offsets_E1.to(device),
        event_columns={name: column.to(device) for name, column in microbatch.event_columns.items()},
        particle_columns={name: column.to(device) for name, column in microbatch.particle_columns.items()},
    )
