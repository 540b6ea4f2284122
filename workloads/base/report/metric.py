"""Metric of an evaluation: definition, value and floor. Pure."""

from __future__ import annotations

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
class Metric:
    """Value of a metric, with error and floor."""

    value: float
    error: float
    """Standard deviation over bootstraps."""
    floor: float
    """Value of the same metric for a perfect model; NaN if unknown."""
    unit: str = ""
    better: str = "lower"
    """Best values: ``lower``; ``zero``: nearest to 0, of either sign; ``half``, ``one`` and ``two`` likewise."""
    meaning: str = ""
    """One line for a reader."""
