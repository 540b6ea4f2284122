"""A batch on its way from the feed to the loop."""

from __future__ import annotations

from dataclasses import dataclass

from services.trainer.stream.position import StreamPosition
from workloads.base.batch import Batch


@dataclass(frozen=True)
class FedBatch:
    """Batch on the device, and the stream's position once all ranks have trained it."""

    batch: Batch
    position: StreamPosition
    audit_lines: tuple[str, ...]
