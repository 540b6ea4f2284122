"""A batch on its way from the feed to the loop."""

from __future__ import annotations

from dataclasses import dataclass

from services.trainer.stream.position import StreamPosition
from workloads.base.batch import Batch


@dataclass(frozen=True)
class FedBatch:
    """A batch on the device, and where the stream is once it has been trained, by all ranks."""

    batch: Batch
    position: StreamPosition
    audit_lines: tuple[str, ...]
