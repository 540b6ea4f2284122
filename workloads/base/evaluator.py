"""What a model tells of itself besides its step's metrics. Telemetry knows no more of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from services.trainer.telemetry.sinks import Histogram, Image
from workloads.base.batch import Batch


@dataclass(frozen=True)
class Evaluation:
    """What was found on the validation block, by the names under which it is told."""

    scalars: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)


class Evaluator(Protocol):
    """Looks at a model from outside: neither call changes it, nor any random numbers that training draws."""

    def settings(self) -> dict[str, float]:
        """What may change while it is trained, such as learning rates. No host sync."""

    def evaluate(self, block: Batch) -> Evaluation | None:
        """Of a block that is the same each time; None while there is nothing to evaluate yet."""
