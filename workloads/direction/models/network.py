"""Interface of the direction networks to training and prediction. Shape suffix: E events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from workloads.direction.models.events import EventInput


@dataclass(frozen=True)
class Prediction:
    """Output of a network for the events of its input."""

    p_E3: Tensor
    """(E, 3): direction p / |p|, concentration |p| of a von Mises-Fisher distribution. Only natural events teach it."""
    auxiliary: tuple[Tensor, ...] = ()
    """Further predictions, each (E, 3), which learn from enriched events as well."""


class DirectionNetwork(nn.Module, ABC):
    """Network of a direction model."""

    needs_fits: ClassVar[bool] = False
    """True if its input must have the classical fits of every event."""

    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """Layers with most of the work, which are compiled one by one: blocks of the same kind share their code."""

    @abstractmethod
    def forward(self, events: EventInput) -> Prediction:
        """Predicted directions; finite for events with any number of pulses, 0 included."""
