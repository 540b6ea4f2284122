"""Validation block: the same events at each evaluation, kept in the run directory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_file import Publishing, replace_file, replacing
from common.errors import BadInputError
from common.messages import Layout
from common.schema import EventSchema, UnitArrays
from common.unit_arrays import Array, event_columns, slot_bytes_needed, unit_arrays
from services.config.settings import ValidationConfig
from services.trainer.copier import copy_to_host
from workloads.base.batch import Batch, Microbatch

logger = logging.getLogger(__name__)

UNITS_FILE = "validation.units"
INDEX_FILE = "validation.json"
_CHUNK_BYTES = 1 << 24


def made_for(config: ValidationConfig, held_out: float) -> dict[str, Any]:
    """Return the settings of which a block is kept; with others, another begins."""
    settings: dict[str, Any] = {"events": config.events, "input": list(config.input)}
    return settings | ({"held_out": held_out} if held_out else {})


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

    def __getitem__(self, place: Any) -> Any:
        """Microbatch on the device, by its number: nobody takes a slice."""
        unit, index = self._places[place]
        content = self._mapped[self._starts[unit] : self._starts[unit + 1]]
        arrays = unit_arrays(content, self._schema, self._layouts[unit])
        return copy_to_host(arrays.only(self._columns), 0, unit, index).to(self._device)


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


class ValidationBlock:
    """Block of events in the run directory: of the run's first batches, or read from files."""

    def __init__(
        self,
        run_dir: Path,
        schema: EventSchema,
        made_for: Mapping[str, Any],
        device: torch.device,
        publishing: Publishing = nullcontext,
    ) -> None:
        """``made_for``: settings of the block. ``publishing``: context of each change in the directory.

        Raises BadInputError if the block in the run directory is damaged.
        """
        self._run_dir = run_dir
        self._schema = schema
        self._made_for = dict(made_for)
        self._device = device
        self._publishing = publishing
        self._first: list[UnitArrays] = []
        """First events of the run, until there are enough."""
        self._epoch: int | None = None
        self.batch: StoredBatch | None = None
        """Block for the training device; None while there is none, or none for these settings."""
        index = self._read_index()
        if index is not None and (index.made_for, index.columns) == (self._made_for, self._columns):
            self._open(index)
        elif index is not None:
            logger.warning(
                "the validation block was made with %s: another begins with %s", index.made_for, self._made_for
            )

    def add(self, batch: Batch, ids: Sequence[Mapping[str, Array]] = ()) -> None:
        """Fill the block from a batch of the run, until it is complete or the first epoch is over.

        ``ids``: columns of each microbatch that the run's batches don't have on the device.
        """
        if self.batch is not None or not batch.microbatches:  # a rank without a share of the batch gets an empty one
            return
        most: int = self._made_for["events"]
        for part, columns in zip(batch.microbatches, ids or repeat({}), strict=False):
            self._epoch = part.epoch if self._epoch is None else self._epoch
            missing = most - self._num_events
            if missing and part.num_events and part.epoch == self._epoch:  # a small set begins again in the same batch
                self._first.append(_first_events(part, columns, missing))
        epochs = {part.shard: part.epoch for part in batch.microbatches}  # of the last microbatch of each
        if self._num_events and (self._num_events == most or self._epoch not in epochs.values()):
            self.write(self._first)
            self._first = []

    @property
    def _num_events(self) -> int:
        return sum(len(unit.offsets) - 1 for unit in self._first)

    def write(self, units: Iterable[UnitArrays]) -> None:
        """Make the block of these units, whose arrays may be valid until the next one is requested."""
        with self._publishing():
            (self._run_dir / INDEX_FILE).unlink(missing_ok=True)  # it must never be that of other units
        digest = hashlib.blake2b(digest_size=16)
        layouts: list[Layout] = []
        path = self._run_dir / UNITS_FILE
        with replacing(path, durable=True, publishing=self._publishing) as part, part.open("wb") as file:
            for unit in units:
                layout = Layout(len(unit.offsets) - 1, int(unit.offsets[-1]), len(unit.microbatch_bounds) - 1)
                content = np.zeros(slot_bytes_needed(self._schema, layout), np.uint8)
                self._fill(unit_arrays(content, self._schema, layout), unit)
                file.write(content.data)
                digest.update(content.data)
                layouts.append(layout)
        index = _Index(made_for=self._made_for, columns=self._columns, units=tuple(layouts), digest=digest.hexdigest())
        with self._publishing():
            replace_file(self._run_dir / INDEX_FILE, index.model_dump_json() + "\n", durable=True)
        self._open(index)

    def _fill(self, arrays: UnitArrays, unit: UnitArrays) -> None:
        """Copy a unit; its sources are left out, since no evaluation needs them."""
        arrays.offsets[:] = unit.offsets
        arrays.microbatch_bounds[:] = unit.microbatch_bounds
        for column in self._schema.columns_per("event"):
            arrays.event_columns[column.name][:] = unit.event_columns[column.name]
        for column in self._schema.columns_per("particle"):
            arrays.particle_columns[column.name][:] = unit.particle_columns[column.name]

    def _read_index(self) -> _Index | None:
        path = self._run_dir / INDEX_FILE
        try:
            return _Index.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise _damaged(path, f"{error.errors()[0]['msg']}") from None

    def _open(self, index: _Index) -> None:
        """Map the units into memory. Raises BadInputError unless they are what was written."""
        path = self._run_dir / UNITS_FILE
        size_bytes = sum(slot_bytes_needed(self._schema, layout) for layout in index.units)
        digest = hashlib.blake2b(digest_size=16)
        try:
            mapped = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from None
        for start in range(0, len(mapped), _CHUNK_BYTES):
            digest.update(mapped[start : start + _CHUNK_BYTES].data)
        if len(mapped) != size_bytes or digest.hexdigest() != index.digest:
            raise _damaged(path, "it is not what was written")
        self.batch = StoredBatch(StoredMicrobatches(mapped, index.units, self._schema, self._device))
        logger.info("validation block: %d events, %d particles", self.batch.num_events, self.batch.num_particles)

    @property
    def _columns(self) -> list[tuple[str, str, int]]:
        columns = (*self._schema.columns_per("particle"), *event_columns(self._schema))
        return [(column.name, column.dtype, len(column.fields)) for column in columns]


def _damaged(path: Path, reason: str) -> BadInputError:
    return BadInputError(f"{path}: can't be read ({reason}); delete it and {INDEX_FILE} to begin another block")


def _first_events(part: Microbatch, ids: Mapping[str, Array], most: int) -> UnitArrays:
    """Return the first ``most`` events of a microbatch as a unit, in memory of its own."""
    num_events = min(most, part.num_events)
    first = part.part(0, num_events)

    def on_host(columns: Mapping[str, torch.Tensor]) -> dict[str, Array]:
        return {name: np.array(column.cpu().numpy()) for name, column in columns.items()}

    return UnitArrays(
        offsets=first.host_offsets_E1.astype(np.int64),
        microbatch_bounds=np.array([0, num_events]),
        particle_columns=on_host(first.particle_columns),
        event_columns=on_host(first.event_columns) | {name: column[:num_events] for name, column in ids.items()},
    )
