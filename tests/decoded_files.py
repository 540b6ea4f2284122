"""Local files through footer, plan and decoder, as a run takes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.config import StreamConfig
from common.files.by_content import ContentReader, read_footer
from common.messages import Layout, Tally, Unit
from common.plan import SlotCapacity, StagedFile, Which, plan_block
from common.schema import EventSchema, UnitArrays
from common.unit_arrays import Array, unit_arrays
from services.decoder.decode import Decode

SEED = 3


@dataclass(frozen=True)
class DecodedUnit:
    """A unit in a slot of its own."""

    unit: Unit
    slot: Array
    layout: Layout
    tally: Tally
    arrays: UnitArrays


def planned(paths: Sequence[Path], workload: EventSchema, stream: StreamConfig) -> list[Unit]:
    """The units of one block of these files, which are numbered as they come."""
    return planned_in_order(paths, range(len(paths)), workload, stream)


def planned_in_order(
    paths: Sequence[Path], order: Sequence[int], workload: EventSchema, stream: StreamConfig
) -> list[Unit]:
    """The same in this order of the files' numbers."""
    capacity = SlotCapacity(workload, stream)
    staged = [StagedFile(i, str(paths[i]), read_footer(paths[i], workload, stream, capacity)) for i in order]
    return plan_block(0, 0, 0, staged, capacity=capacity, stream=stream, seed=SEED)


def decoded(
    units: Sequence[Unit], workload: EventSchema, stream: StreamConfig, run_dir: Path, which: Which = "train"
) -> list[DecodedUnit]:
    """All of them. ``run_dir``: for outliers."""
    found = []
    stream = stream.model_copy(update={"part": which})
    with closing(ContentReader(workload)) as reader:
        decode = Decode(workload, stream, SEED, run_dir, reader)
        for unit in units:
            slot = np.full(stream.slot_bytes, 0xEE, np.uint8)  # what a former unit left
            layout, tally = decode(unit, slot)
            found.append(DecodedUnit(unit, slot, layout, tally, unit_arrays(slot, workload, layout)))
    return found
