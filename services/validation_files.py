"""Events for the validation block, drawn from files of their own.

Beside the services, as `convert` and `inspect` are: what a file holds is found out by the fetcher's code, and read and
checked by the decoder's, as a unit is; the block is the trainer's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common.config import StreamConfig
from common.errors import BadInputError
from common.messages import Unit
from common.ragged import UnitArrays, slot_bytes_needed, unit_arrays
from common.schema import Workload
from services.config import Config
from services.decoder.decode import Decode
from services.decoder.microbatch import microbatch_bounds
from services.decoder.readers.by_content import ContentReader
from services.fetcher.footers import read_footer
from services.fetcher.inputs import NothingFound, expand, local_path
from services.fetcher.plan import SlotCapacity, StagedFile, plan_block
from services.fetcher.remotes import Remotes

_READ_FACTOR = 16
"""So many times the wanted events are read, at most: neighbours in a file may be of one shower."""
_SLOT_MIB = 256.0


def read_validation_events(config: Config, run_dir: Path) -> UnitArrays:
    """`trainer.validation.events` events of `trainer.validation.input`, drawn with the run's seed, or all there are.

    They are such as would be trained on: outliers are left out, and depths are vertical.

    Raises BadInputError that names the file.
    """
    wanted = config.trainer.validation.events
    stream = config.stream.model_copy(
        update={"shuffle": True, "unit_events": wanted * _READ_FACTOR, "batch_events": wanted, "lanes": 1}
        | {"slot_mib": max(_SLOT_MIB, config.stream.slot_mib)}
    )
    workload = config.stored_workload()
    decode = Decode(workload, stream, config.seed, run_dir, ContentReader(workload))
    taken: list[UnitArrays] = []
    missing = wanted
    try:
        for unit in _units(_files(config), workload, stream, config.seed):
            arrays = _decoded(decode, unit, workload)
            taken.append(_first_events(arrays, missing))
            missing -= len(taken[-1].offsets) - 1
            if not missing:
                break
    finally:
        decode.reader.close()
    if missing == wanted:
        raise BadInputError(f"trainer.validation.input = {list(config.trainer.validation.input)}: no event to look at")
    return _joined(taken, stream)


def _files(config: Config) -> list[Path]:
    """Raises BadInputError for what is not local, and for what the run trains on."""
    inputs = config.trainer.validation.input
    for text in inputs:
        if local_path(text.removeprefix("file://")) is None:
            raise BadInputError(f"trainer.validation.input: {text} is not local; copy some files, and name these")
    with Remotes(config) as remotes:
        files = [Path(file.url) for file in expand(inputs, remotes)]
        trained = set(_trained(config.input, remotes))
    for path in files:
        if path.resolve() in trained:
            raise BadInputError(
                f"{path} is one of trainer.validation.input and of the run's inputs: move it out of these"
            )
    return files


def _trained(inputs: Sequence[str], remotes: Remotes) -> Iterator[Path]:
    """Local files of the run, as far as they are seen from here."""
    for text in inputs:
        if local_path(text.removeprefix("file://")) is not None and not text.startswith("@"):
            with contextlib.suppress(NothingFound):  # ranges, or the fetcher is on another machine
                yield from [Path(file.url).resolve() for file in expand([text], remotes)]


def _units(files: Sequence[Path], workload: Workload, stream: StreamConfig, seed: int) -> Iterator[Unit]:
    """Row groups in random order, from as many of the files as are needed."""
    capacity = SlotCapacity(workload, stream)
    staged: list[StagedFile] = []
    rows = 0
    for index in np.random.default_rng(seed).permutation(len(files)).tolist():
        try:
            footer = read_footer(files[index], workload, stream, capacity)
        except BadInputError as error:
            raise BadInputError(f"{files[index]}: {error}") from None
        staged.append(StagedFile(index, str(files[index]), footer))
        rows += footer.rows
        if rows >= stream.unit_events:
            break
    # Epoch 1: outliers are written to a file in epoch 0 only, and these are not the run's.
    yield from plan_block(0, 0, 1, staged, capacity=capacity, stream=stream, seed=seed)


def _decoded(decode: Decode, unit: Unit, workload: Workload) -> UnitArrays:
    slot = np.empty(decode.stream.slot_bytes, np.uint8)
    layout, tally = decode(unit, slot)
    if tally.bad:
        raise BadInputError(tally.bad[0].reason)
    return unit_arrays(slot[: slot_bytes_needed(workload, layout)], workload, layout)


def _first_events(arrays: UnitArrays, most: int) -> UnitArrays:
    """Copies: the arrays are views of a large buffer."""
    num = min(most, len(arrays.offsets) - 1)
    num_particles = int(arrays.offsets[num])
    return UnitArrays(
        offsets=arrays.offsets[: num + 1].copy(),
        microbatch_bounds=np.array([0, num]),
        particle_columns={name: column[:num_particles].copy() for name, column in arrays.particle_columns.items()},
        event_columns={name: column[:num].copy() for name, column in arrays.event_columns.items()},
    )


def _joined(many: Sequence[UnitArrays], stream: StreamConfig) -> UnitArrays:
    counts = np.concatenate([np.diff(one.offsets) for one in many])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return UnitArrays(
        offsets=offsets,
        microbatch_bounds=microbatch_bounds(offsets, stream.batch_events, stream.max_particles),
        particle_columns={
            name: np.concatenate([one.particle_columns[name] for one in many]) for name in many[0].particle_columns
        },
        event_columns={
            name: np.concatenate([one.event_columns[name] for one in many]) for name in many[0].event_columns
        },
    )
