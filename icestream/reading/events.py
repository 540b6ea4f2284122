"""Reader of events from files, outside of a run.

It uses the services' code, like `convert` and `inspect`: the fetcher's to inspect a file, the decoder's to read and
check it like a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import ContentReader
from common.files.footers import read_footer
from common.held_out import Which
from common.invalid_events import lines_of_rules
from common.messages import Tally
from common.plan import SlotCapacity, SourceFile, StagedFile, plan_block
from common.ragged import unit_arrays
from common.schema import EventSchema
from common.unit_arrays import UnitArrays
from services.decoder.decode import Decode
from services.decoder.microbatch import microbatch_bounds
from workloads.base.random_streams import SharedPurpose, numpy_stream

READ_FACTOR = 16
"""Maximum events read, as a factor on the wanted ones: neighbours in a file may be from one shower."""

StageFile = Callable[[int, SourceFile], StagedFile]
"""Callback that brings a file to local disk and reads its footer. Raises BadInputError that names the file."""


Report = Callable[[str], None]
"""Callback for a fault of a file: it raises, or the file or row group is left out."""


def refuse(reason: str) -> None:
    """Raise BadInputError."""
    raise BadInputError(reason)


def stage_local(workload: EventSchema, stream: StreamConfig, report: Report = refuse) -> StageFile:
    """Callback for files on local disk."""
    capacity = SlotCapacity(workload, stream)

    def stage(index: int, source: SourceFile) -> StagedFile:
        path = Path(source.url)
        try:
            return StagedFile(index, str(path), read_footer(path, workload, stream, capacity))
        except BadInputError as error:
            report(f"{path}: {error}")
            return StagedFile(index, str(path), None)

    return stage


def staged_in_random_order(
    sources: Sequence[SourceFile], stage: StageFile, enough_rows: int | None, seed: int
) -> list[StagedFile]:
    """Files in random order, until they have ``enough_rows`` together, or all. Raises the errors of ``stage``."""
    order = numpy_stream(SharedPurpose.SAMPLE_FILES, seed).permutation(len(sources)).tolist()
    return staged_in_order(sources, order, stage, enough_rows)


def staged_in_order(
    sources: Sequence[SourceFile], order: Sequence[int], stage: StageFile, enough_rows: int | None
) -> list[StagedFile]:
    """Files in this order, until they have ``enough_rows`` together, or all. Raises the errors of ``stage``."""
    staged: list[StagedFile] = []
    rows = 0
    for index in order:
        staged.append(stage(index, sources[index]))
        footer = staged[-1].footer
        rows += footer.rows if footer else 0
        if enough_rows is not None and rows >= enough_rows:
            break
    return staged


def read_units(
    staged: Sequence[StagedFile],
    workload: EventSchema,
    stream: StreamConfig,
    seed: int,
    run_dir: Path,
    which: Which = "all",
    report: Report = refuse,
) -> Generator[tuple[UnitArrays, Tally]]:
    """Events of each unit, in random order. The arrays are valid until the next ones are requested.

    ``which``: of the events, where `stream.held_out` holds some out of training. ``report`` gets the faults of files.
    """
    capacity = SlotCapacity(workload, stream)
    with closing(ContentReader(workload)) as reader:
        decode = Decode(workload, stream, seed, run_dir, reader, which)
        # Epoch 1: outliers are written to a file in epoch 0 only, and these don't belong to a run.
        for unit in plan_block(0, 0, 1, staged, capacity=capacity, stream=stream, seed=seed):
            particles = sum(part.particles for part in unit.parts)
            slot = np.empty(capacity.bytes_needed(max(unit.rows, 1), particles), np.uint8)
            layout, tally = decode(unit, slot)
            for bad in tally.bad:
                report(bad.reason)
            for line in lines_of_rules(tally.broken_rules):
                report(f"invalid {line}")
            yield unit_arrays(slot, workload, layout), tally


def share_of_each(units: Iterable[tuple[UnitArrays, Tally]], wanted: int, total_rows: int) -> Iterator[UnitArrays]:
    """Sample of ``wanted`` events from units with ``total_rows`` rows together, from each in proportion to its rows."""
    rows = taken = 0
    for arrays, tally in units:
        num = len(arrays.offsets) - 1
        rows += tally.rows_read
        share = min(-(-wanted * rows // max(total_rows, 1)) - taken, wanted - taken, num)
        if share > 0:
            taken += share
            yield first_events(arrays, share)
        if taken == wanted:
            return


def first_events(arrays: UnitArrays, most: int) -> UnitArrays:
    """First ``most`` events, copied: the arrays are views of a large buffer."""
    num = min(most, len(arrays.offsets) - 1)
    num_particles = int(arrays.offsets[num])
    return UnitArrays(
        offsets=arrays.offsets[: num + 1].copy(),
        microbatch_bounds=np.array([0, num]),
        particle_columns={name: column[:num_particles].copy() for name, column in arrays.particle_columns.items()},
        event_columns={name: column[:num].copy() for name, column in arrays.event_columns.items()},
    )


def joined(many: Sequence[UnitArrays], stream: StreamConfig) -> UnitArrays:
    """Concatenated events, cut into microbatches like a unit."""
    counts = np.concatenate([np.diff(one.offsets) for one in many])
    together = UnitArrays(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        microbatch_bounds=np.array([0, len(counts)]),
        particle_columns={
            name: np.concatenate([one.particle_columns[name] for one in many]) for name in many[0].particle_columns
        },
        event_columns={
            name: np.concatenate([one.event_columns[name] for one in many]) for name in many[0].event_columns
        },
    )
    return cut(together, stream)


def cut(arrays: UnitArrays, stream: StreamConfig) -> UnitArrays:
    """Same events, cut into microbatches like a unit."""
    bounds = microbatch_bounds(arrays.offsets, stream.batch_events, stream.max_particles, stream.max_squared_particles)
    return replace(arrays, microbatch_bounds=bounds)
