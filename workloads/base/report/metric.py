"""Metric of an evaluation: definition, value and floor. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

TARGETS = {"zero": 0.0, "half": 0.5, "one": 1.0, "two": 2.0}
"""Best value of a two-sided metric, by `better`."""


@dataclass(frozen=True)
class Definition:
    """Definition of a metric, without values."""

    unit: str
    better: str
    """See Metric.better."""
    meaning: str
    """One line for a reader."""


@dataclass(frozen=True)
class Floor:
    """Value of a metric for a perfect model; NaN: unknown."""

    value: float = math.nan
    error: float = math.nan
    """See Metric.floor_error."""
    spread: float = math.nan
    """See Metric.floor_spread."""


@dataclass(frozen=True)
class Metric:
    """Value of a metric, with error and floor."""

    value: float
    error: float
    """Standard deviation over bootstraps."""
    floor: float
    """Value of the same metric for a perfect model, in the mean; NaN if unknown."""
    unit: str = ""
    better: str = "lower"
    """Best values: ``lower``; ``zero``: nearest to 0, of either sign; ``half``, ``one`` and ``two`` likewise."""
    meaning: str = ""
    """One line for a reader."""
    floor_error: float = math.nan
    """Standard deviation of ``floor``, which is measured, too; NaN if unknown, 0 if the floor is exact."""
    floor_spread: float = math.nan
    """Standard deviation of the value of one perfect model on these events; NaN if unknown."""

    @classmethod
    def of(cls, definition: Definition, value: float, error: float, floor: Floor) -> Metric:
        """Metric with this definition."""
        return cls(
            value,
            error,
            floor.value,
            definition.unit,
            definition.better,
            definition.meaning,
            floor_error=floor.error,
            floor_spread=floor.spread,
        )
