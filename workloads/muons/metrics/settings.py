"""How much an evaluation does. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationSettings:
    """More of anything takes longer; the numbers' meaning stays the same."""

    bootstraps: int = 100
    """Times that the showers are drawn again, for the errors."""

    max_events: int = 40_000
    """So many events are looked at, whole showers chosen at random. Floors shrink like 1 / sqrt(events)."""

    c2st: bool = True
    """Train the classifiers: more than half of the time."""

    c2st_epochs: int = 12
    """Times that a classifier sees its half of the events."""

    c2st_width: int = 64
    """Width of the classifiers' layers."""

    c2st_max_muons: int = 256
    """Muons of one event that the set classifier sees, a random choice. It knows the true number."""

    floor_splits: int = 8
    """Ways to halve the real showers for the floors, where the simulator can't draw real events again."""

    seed: int = 0
    """Of every random choice here: one seed, one report."""
