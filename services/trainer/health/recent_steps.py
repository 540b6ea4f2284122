"""Metrics and data origins of the recent steps, kept until they are read; until then the host does not wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.batch import Batch


class Place(NamedTuple):
    """Origin of a microbatch."""

    shard: int
    epoch: int
    unit: int
    microbatch: int


@dataclass(frozen=True)
class TakenStep:
    """Step with its metrics on the host."""

    step: int
    places: tuple[Place, ...]
    """Origin of its microbatches; with several ranks: of those of this rank."""
    metrics: dict[str, float]


class RecentSteps:
    """Steps since the last read(). Each holds a row of metrics on the device: read often enough."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, tuple[Place, ...], tuple[str, ...]]] = []
        self._rows: list[Tensor] = []

    def add(self, step: int, batch: Batch, metrics: Mapping[str, Tensor]) -> None:
        """Add a step; ``metrics`` are 0-dim, on the device. They are copied: a graph may overwrite them."""
        places = tuple(Place(one.shard, one.epoch, one.unit, one.index) for one in batch.microbatches)
        self._steps.append((step, places, tuple(metrics)))
        if metrics:
            self._rows.append(torch.stack([value.detach().float() for value in metrics.values()]))

    def read(self) -> list[TakenStep]:
        """Steps since the last call, oldest first. Waits for the device, once."""
        values = iter(torch.cat(self._rows).tolist() if self._rows else ())
        taken = [TakenStep(step, places, {name: next(values) for name in names}) for step, places, names in self._steps]
        self.forget()
        return taken

    def forget(self) -> None:
        """Drop unread steps after a rollback."""
        self._steps.clear()
        self._rows.clear()
