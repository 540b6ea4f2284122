"""Batch of ragged events, as the Python API gives it.

Shape suffixes: E events, P particles, F fields of a column.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from common.awkward_events import awkward_events
from common.errors import BadInputError
from common.schema import EventSchema, Per
from workloads.base.batch import Batch, Microbatch

if TYPE_CHECKING:
    from services.trainer.stream.position import StreamPosition


class RaggedBatch:
    """Events with different numbers of particles each: columns of all events, of all particles, and offsets.

    Event ``e`` owns the particles ``offsets[e]`` to ``offsets[e + 1]``.
    """

    def __init__(
        self,
        batch: Batch,
        schema: EventSchema,
        epoch: int,
        position: StreamPosition,
        *,
        device: torch.device,
        is_last: bool = False,
    ) -> None:
        """``device``: where the batch's tensors are; those of a batch without microbatches are made there."""
        self._content = batch
        self._schema = schema
        self._device = device
        self.epoch = epoch
        """Number of the pass over the files, from 0."""
        self.position = position
        """Position of the stream after this batch: see EventStream.state_dict."""
        self.is_last = is_last
        """True for the last batch of an epoch."""
        self.was_read = False
        """True once anything of its events was asked for."""

    @property
    def _batch(self) -> Batch:
        self.was_read = True
        return self._content

    @property
    def microbatches(self) -> Sequence[Microbatch]:
        """Parts of the batch within the limits of `stream.max_particles`, in order: for networks that would need too
        much memory for the whole batch."""
        return self._batch.microbatches

    @cached_property
    def events(self) -> Mapping[str, Tensor]:
        """Columns with a row for each event, by name: (E, F)."""
        return self._columns("event")

    @cached_property
    def particles(self) -> Mapping[str, Tensor]:
        """Columns with a row for each particle, by name: (P, F)."""
        return self._columns("particle")

    @cached_property
    def offsets(self) -> Tensor:
        """First particle of each event, and the number of particles: (E + 1,) int64."""
        parts = self.microbatches
        if len(parts) == 1:
            return parts[0].offsets_E1
        if not parts:
            return torch.zeros(1, dtype=torch.int64, device=self._device)
        shifted, first = [parts[0].offsets_E1[:1]], 0
        for part in parts:
            shifted.append(part.offsets_E1[1:] + first)
            first += part.num_particles
        return torch.cat(shifted)

    @property
    def counts(self) -> Tensor:
        """Number of particles of each event: (E,) int64."""
        return self.offsets.diff()

    @property
    def event_of_particle(self) -> Tensor:
        """Number of the event, from 0, that each particle belongs to: (P,) int64."""
        events = torch.arange(self.num_events, device=self.offsets.device)
        return torch.repeat_interleave(events, self.counts, output_size=self.num_particles)

    @property
    def num_events(self) -> int:
        """Events of this batch, on this rank."""
        return self._batch.num_events

    @property
    def num_particles(self) -> int:
        """Particles of this batch, on this rank."""
        return self._batch.num_particles

    @property
    def total_events(self) -> int:
        """Events of all ranks in the same step: the divisor of a mean over the whole batch."""
        return self._batch.total_events

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.offsets.device

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """Names of the fields of each column, in order, with their units."""
        return {column.name: column.fields for column in self._schema.columns}

    def nested(self, name: str | None = None) -> Tensor:
        """Nested tensor of a particle column in torch's jagged layout: (E, ragged, F).

        ``name`` may be left out where there is one particle column. No copy.
        """
        log = logging.getLogger("torch.fx._symbolic_trace")
        log.addFilter(_is_no_notice)  # torch's own call makes torch print, once, what its developers should do
        try:
            return torch.nested.nested_tensor_from_jagged(self.particles[self._particle_name(name)], self.offsets)
        finally:
            log.removeFilter(_is_no_notice)

    def awkward(self) -> Any:
        """Awkward array of records, an entry for each event: event columns as records of their fields, particle columns
        as lists of such records. On the CPU; needs `pip install -c constraints.txt '.[awkward]'`."""
        events, particles = (
            {name: column.cpu().numpy() for name, column in columns.items()}
            for columns in (self.events, self.particles)
        )
        return awkward_events(self._schema, self.offsets.cpu().numpy(), events, particles)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Copy of the batch on another device; the batch itself if it is there."""
        device = torch.device(device)
        if self.device == device:
            return self
        batch = self._batch.with_microbatches(
            tuple(part.to(device, non_blocking=non_blocking) for part in self.microbatches)
        )
        return type(self)(batch, self._schema, self.epoch, self.position, device=device, is_last=self.is_last)

    def __len__(self) -> int:
        return self.num_events

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} ({', '.join(fields)})" for name, fields in self.fields.items())
        return (
            f"<RaggedBatch: {self.num_events:,} events, {self.num_particles:,} particles, epoch {self.epoch}, on"
            f" {self.device}: {columns}>"
        )

    def _columns(self, per: Per) -> dict[str, Tensor]:
        return {column.name: self._merged(per, column.name) for column in self._schema.columns_per(per)}

    def _merged(self, per: Per, name: str) -> Tensor:
        parts = [(part.event_columns if per == "event" else part.particle_columns)[name] for part in self.microbatches]
        if not parts:  # a rank without data while others have some
            column = self._schema.column(name)
            return torch.empty((0, len(column.fields)), dtype=torch_dtype(column.dtype), device=self._device)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _particle_name(self, name: str | None) -> str:
        names = list(self.particles)
        if name is None and len(names) == 1:
            return names[0]
        if name not in names:
            raise BadInputError(f"nested({name!r}): name one of the particle columns, {', '.join(map(repr, names))}")
        return name


def _is_no_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("is_fx_tracing will return true")


def torch_dtype(name: str) -> torch.dtype:
    """Type of torch for numpy's name of one, as in Column.dtype."""
    import numpy as np

    return torch.from_numpy(np.empty(0, name)).dtype
