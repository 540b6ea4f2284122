"""One number of an evaluation: its definition, its value and its floor. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = {"zero": 0.0, "one": 1.0, "half": 0.5}
"""Best value of a metric that may be off to either side, by `better`."""


@dataclass(frozen=True)
class Definition:
    """One metric, without its numbers."""

    unit: str
    better: str
    """See Metric.better."""
    meaning: str
    """One line for a reader."""


@dataclass(frozen=True)
class Metric:
    """One number, beside its floor."""

    value: float
    error: float
    """Standard deviation over bootstraps."""
    floor: float
    """Value of the same metric for a perfect model. NaN if none is known."""
    unit: str = ""
    better: str = "lower"
    """``lower``; ``zero``: the nearer to 0, of either sign; ``one`` and ``half`` likewise."""
    meaning: str = ""
    """One line for a reader."""
