"""Units without a run: files planned and decoded in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.files.inputs import local_path
from common.messages import Unit
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block
from common.ragged import unit_arrays
from common.unit_arrays import UnitArrays
from services.config.root import Config
from services.decoder.decode import Decode
from services.fetcher.staging.stage import NotStaged, Stage
from workloads import registry


@contextmanager
def with_inputs(config: Config, num_events: int) -> Iterator[Config]:
    """The configuration itself, or, if it names no inputs, with a folder of ``num_events`` simulated events.

    The folder exists as long as the context. Raises BadInputError if the workload has no simulator.
    """
    if config.input:
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        simulate_into(Path(folder), config, num_events, config.seed)
        yield config.model_copy(update={"input": (folder,)})


def simulate_into(folder: Path, config: Config, num_events: int, seed: int) -> None:
    """Write simulated events of the workload. Raises BadInputError if it has no simulator."""
    if (sample := registry.sample(config.workload)) is None:
        raise BadInputError(f"the workload {config.workload} has no simulator: name files with -i")
    sample(folder, num_events, seed)


def planned_blocks(
    config: Config, inventory: Sequence[SourceFile], stage: Stage, capacity: SlotCapacity
) -> Iterator[list[Unit]]:
    """Units of each block of an epoch; a block's files are staged when it is requested, and dropped at the next."""
    order = Blocks(len(inventory), config.stream, config.seed, epochs=1)
    next_k = 0
    for block in range(order.per_epoch):
        files = [staged(stage, file, inventory[file]) for file in order.files(block)]
        units = plan_block(block, next_k, 0, files, capacity=capacity, stream=config.stream, seed=config.seed)
        yield units
        next_k += len(units)
        for file in order.files(block):
            if local_path(inventory[file].url) is None:
                stage.cache.drop(inventory[file])


def decoded(config: Config, units: Iterable[Unit], folder: Path) -> Iterator[tuple[Unit, UnitArrays]]:
    """Units with their arrays, valid until the next one is requested. ``folder``: where outliers are written."""
    workload = config.stored_workload()
    slot = np.zeros(config.stream.slot_bytes, np.uint8)
    with closing(ContentReader(workload)) as reader:
        decode = Decode(workload, config.stream, config.seed, folder, reader)
        for unit in units:
            layout, _ = decode(unit, slot)
            yield unit, unit_arrays(slot, workload, layout)


def staged(stage: Stage, file: int, source: SourceFile) -> StagedFile:
    """File number ``file`` with its footer, or the reason that it has none. Raises BadInputError for a failure that
    may pass: a run would wait."""
    found = stage(file, source, None)
    if isinstance(found, NotStaged):
        raise BadInputError(f"{found.reason}; try again later")
    return found
