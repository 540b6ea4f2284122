"""Validation events read from files: kept in the run directory, mapped into memory, moved to the device one microbatch
at a time.

`validation.units` has the units one after the other, each as in a slot (common/ragged.py); `validation.json` says what
they were made for and where each one is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_file import Publishing, replace_file, replacing
from common.errors import BadInputError
from common.messages import Layout
from common.ragged import event_columns, slot_bytes_needed, unit_arrays
from common.schema import EventSchema
from common.unit_arrays import UnitArrays
from services.trainer.stream.copier import copy_to_host
from workloads.base.batch import Batch, Microbatch

logger = logging.getLogger(__name__)

UNITS_FILE = "validation.units"
INDEX_FILE = "validation.json"
_CHUNK_BYTES = 1 << 24

Pieces = Iterable[UnitArrays]
"""Units of events; the arrays may be valid until the next one is requested."""


class _Index(BaseModel):
    """Content of `validation.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    made_for: dict[str, Any]
    columns: list[tuple[str, str, int]]
    """Name, type and number of fields of each column."""
    units: tuple[Layout, ...]
    """Counts of each unit, in order."""
    digest: str
    """BLAKE2b of `validation.units`, 32 hexadecimal digits."""


class StoredMicrobatches(Sequence[Microbatch]):
    """Microbatches of a file of units. Each is copied to the device anew when it is requested."""

    def __init__(
        self, mapped: npt.NDArray[np.uint8], layouts: Sequence[Layout], schema: EventSchema, device: torch.device
    ) -> None:
        self._mapped, self._layouts, self._schema, self._device = mapped, layouts, schema, device
        self._columns = [column.name for column in schema.columns]  # without the sources
        sizes = [slot_bytes_needed(schema, layout) for layout in layouts]
        self._starts = [0, *np.cumsum(sizes).tolist()]
        self._places = [(unit, index) for unit, one in enumerate(layouts) for index in range(one.microbatches)]
        self.num_events = sum(layout.events for layout in layouts)
        self.num_particles = sum(layout.particles for layout in layouts)

    def __len__(self) -> int:
        """Number of microbatches."""
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Microbatch: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Microbatch]: ...
    def __getitem__(self, place: int | slice) -> Microbatch | Sequence[Microbatch]:
        """Microbatch on the device; of a slice all at once."""
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        unit, index = self._places[place]
        content = self._mapped[self._starts[unit] : self._starts[unit + 1]]
        arrays = unit_arrays(content, self._schema, self._layouts[unit])
        part = copy_to_host(arrays.only(self._columns), 0, unit, index)
        return replace(
            part,
            offsets_E1=part.offsets_E1.to(self._device),
            event_columns={name: column.to(self._device) for name, column in part.event_columns.items()},
            particle_columns={name: column.to(self._device) for name, column in part.particle_columns.items()},
        )


@dataclass(frozen=True)
class StoredBatch(Batch):
    """Batch of StoredMicrobatches: counting its events loads none of them."""

    microbatches: StoredMicrobatches

    @property
    def num_events(self) -> int:
        """Events in all microbatches."""
        return self.microbatches.num_events

    @property
    def num_particles(self) -> int:
        """Particles in all microbatches."""
        return self.microbatches.num_particles


def stored_block(
    run_dir: Path,
    schema: EventSchema,
    made_for: Mapping[str, Any],
    device: torch.device,
    read: Callable[[], Pieces],
    publishing: Publishing = nullcontext,
) -> StoredBatch:
    """Block of the run directory, which ``read`` fills if there is none for these settings, ``made_for``.

    ``publishing``: context of each change in the directory, of several nodes.

    Raises BadInputError if the one in the run directory is damaged.
    """
    index = _read_index(run_dir)
    described = _columns(schema)
    if index is not None and (index.made_for, index.columns) != (made_for, described):
        logger.warning("the validation block was made with %s: another begins with %s", index.made_for, dict(made_for))
        index = None
    if index is None:
        with publishing():
            (run_dir / INDEX_FILE).unlink(missing_ok=True)  # it must never be that of other units
        units, digest = _write_units(run_dir / UNITS_FILE, schema, read(), publishing)
        index = _Index(made_for=dict(made_for), columns=described, units=units, digest=digest)
        with publishing():
            replace_file(run_dir / INDEX_FILE, index.model_dump_json() + "\n", durable=True)
    size_bytes = sum(slot_bytes_needed(schema, layout) for layout in index.units)
    block = StoredBatch(StoredMicrobatches(_mapped(run_dir, index, size_bytes), index.units, schema, device))
    logger.info("validation block: %d events, %d particles", block.num_events, block.num_particles)
    return block


def _read_index(run_dir: Path) -> _Index | None:
    path = run_dir / INDEX_FILE
    try:
        return _Index.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise _damaged(path, f"{error.errors()[0]['msg']}") from None


def _write_units(
    path: Path, schema: EventSchema, pieces: Pieces, publishing: Publishing
) -> tuple[tuple[Layout, ...], str]:
    """Write the units one after the other; their counts, and the file's digest."""
    digest = hashlib.blake2b(digest_size=16)
    units: list[Layout] = []
    with replacing(path, durable=True, publishing=publishing) as part, part.open("wb") as file:
        for piece in pieces:
            layout = Layout(len(piece.offsets) - 1, int(piece.offsets[-1]), len(piece.microbatch_bounds) - 1)
            content = np.zeros(slot_bytes_needed(schema, layout), np.uint8)
            _fill(unit_arrays(content, schema, layout), piece)
            file.write(content.data)
            digest.update(content.data)
            units.append(layout)
    return tuple(units), digest.hexdigest()


def _fill(arrays: UnitArrays, piece: UnitArrays) -> None:
    arrays.offsets[:] = piece.offsets
    arrays.microbatch_bounds[:] = piece.microbatch_bounds
    for name, column in arrays.event_columns.items():
        column[:] = piece.event_columns[name]
    for name, column in arrays.particle_columns.items():
        column[:] = piece.particle_columns[name]


def _mapped(run_dir: Path, index: _Index, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Content of `validation.units`, mapped into memory. Raises BadInputError unless it is what was written."""
    path = run_dir / UNITS_FILE
    digest = hashlib.blake2b(digest_size=16)
    try:
        mapped = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    for start in range(0, len(mapped), _CHUNK_BYTES):
        digest.update(mapped[start : start + _CHUNK_BYTES].data)
    if len(mapped) != size_bytes or digest.hexdigest() != index.digest:
        raise _damaged(path, "it is not what was written")
    return mapped


def _damaged(path: Path, reason: str) -> BadInputError:
    return BadInputError(f"{path}: can't be read ({reason}); delete it and {INDEX_FILE} to begin another block")


def _columns(schema: EventSchema) -> list[tuple[str, str, int]]:
    columns = (*schema.columns_per("particle"), *event_columns(schema))
    return [(column.name, column.dtype, len(column.fields)) for column in columns]
