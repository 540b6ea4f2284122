"""Training batches without a run: files planned, decoded and cut in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import torch

from common.errors import BadInputError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.messages import Unit
from common.plan import SlotCapacity
from common.unit_arrays import UnitArrays
from icestream.commands.bench.units import decoded, planned_blocks
from services.config.root import Config
from services.fetcher.inventory.ranges import make_ranges
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import Stage
from services.trainer.stream.copier import copy_to_host
from workloads.base.batch import Batch, Microbatch

_SPARE = 1.25
"""Factor on the number of simulated events: a batch may be larger than requested."""


def events_for(config: Config, num_batches: int) -> int:
    """Number of simulated events that give ``num_batches`` batches."""
    return int(num_batches * config.stream.batch_events * _SPARE)


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
        blocks = planned_blocks(config, expand(first.inputs, remotes), stage, capacity)
        units = decoded(config, chain.from_iterable(blocks), Path(folder))
        batches = list(islice(_batches(config, units, device), num_batches))
    if not batches:
        raise BadInputError(f"{', '.join(config.input)}: no event is fit for training")
    return batches


def _batches(config: Config, units: Iterator[tuple[Unit, UnitArrays]], device: torch.device) -> Iterator[Batch]:
    """Batches of consecutive microbatches with the events of a step; the last one may be smaller."""
    taken: list[Microbatch] = []
    num_events = 0
    for unit, arrays in units:
        for index in range(len(arrays.microbatch_bounds) - 1):
            microbatch = copy_to_host(arrays, unit.epoch, unit.k, index)
            taken.append(_on(device, replace(microbatch, number=len(taken))))
            num_events += taken[-1].num_events
            if num_events >= config.stream.batch_events:
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
