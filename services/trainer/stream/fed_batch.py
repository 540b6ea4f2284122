"""A batch on its way from the feed to the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from common.unit_arrays import Array
from services.trainer.stream.position import StreamPosition
from workloads.base.batch import Batch, Microbatch


class FedMicrobatch(NamedTuple):
    """Microbatch on the device, and what the host keeps of it."""

    microbatch: Microbatch
    audit_lines: tuple[str, ...]
    """Lines of the audit: of each microbatch in the unit, of which several may be joined here."""
    ids: Mapping[str, Array]
    """Column of the events' ids by name, which the device does not get; empty if they are not needed."""


@dataclass(frozen=True)
class FedBatch:
    """Batch on the device, and the stream's position once all ranks have trained it."""

    batch: Batch
    position: StreamPosition
    audit_lines: tuple[tuple[int, str], ...]
    """Lines of the audit, each with its shard."""
    ids: tuple[Mapping[str, Array], ...] = ()
    """Ids of each microbatch: see FedMicrobatch."""

    @classmethod
    def of(cls, parts: Sequence[FedMicrobatch], position: StreamPosition) -> Self:
        """Batch of these microbatches."""
        lines = tuple((part.microbatch.shard, line) for part in parts for line in part.audit_lines)
        return cls(Batch(tuple(part.microbatch for part in parts)), position, lines, tuple(part.ids for part in parts))
