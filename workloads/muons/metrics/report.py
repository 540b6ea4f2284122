"""What an evaluation found, as it is told and stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """One number, beside what it is between real and real."""

    value: float
    error: float
    """Standard deviation over bootstraps of showers."""
    floor: float
    """The same metric between real and independent real: what a perfect generator has. NaN if there is none."""
    unit: str = ""
    better: str = "lower"
    """``lower``; ``zero``: the nearer to 0, of either sign; ``one`` and ``half`` likewise."""
    meaning: str = ""
    """One line for a reader."""


@dataclass(frozen=True)
class MetricReport:
    """All metrics by name, in the order in which they are told, and what they were found with."""

    metrics: Mapping[str, Metric]
    num_events: int
    num_muons_real: int
    num_muons_generated: int
    floor_kind: str
    """``same primaries`` (the simulator drew them again) or ``disjoint showers`` (halves of the files' events)."""
    notes: tuple[str, ...] = field(default=())
    """What a reader must know: muons that were not finite, events that were left out."""
