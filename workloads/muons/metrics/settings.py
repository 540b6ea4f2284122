"""Settings of an evaluation. Pure."""

from __future__ import annotations

from dataclasses import dataclass

REDRAWS = 8
"""Number of independent redraws of the real events, for the floors and their errors."""


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation. Larger values take longer; the meaning of the metrics stays the same."""

    bootstraps: int = 100
    """Number of bootstraps of the showers, for the errors."""

    max_events: int = 40_000
    """Most events that are used, whole showers chosen at random. Floors shrink like 1 / sqrt(events)."""

    c2st: bool = True
    """Train the classifiers: more than half of the time."""

    c2st_epochs: int = 12
    """Epochs of a classifier over its half of up to 40,000 events; fewer epochs of more events, in as many steps."""

    c2st_width: int = 64
    """Width of the classifiers' layers."""

    c2st_max_muons: int = 256
    """Most muons of one event in the input of the set classifier, chosen at random; it also has the true number."""

    floor_splits: int = 8
    """Number of random halvings of the real showers for the floors, if the simulator can't draw real events again."""

    seed: int = 0
    """Seed of every random choice here: one seed, one report."""
