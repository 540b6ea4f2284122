"""Smallest possible errors of simulated events, as benchmarks/bench_direction_floor.py measured them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from workloads.base.report.metric import Floor
from workloads.direction.metrics.definitions import DEFINITIONS

FLOOR_FILE = "toy_floor.json"
"""Result of the benchmark, beside this module."""


@dataclass(frozen=True)
class ToyFloor:
    """Figures of the best possible prediction of the simulator's events, with its standard settings."""

    figures: Mapping[str, Floor]
    """Floors by the names of metrics."""
    events: int
    date: str
    array: str = "icecube"
    """Sensors of the detector: a key of workloads.direction.geometry.ARRAYS."""

    @property
    def note(self) -> str:
        """Source of the figures."""
        return (
            f"floors of angles: posteriors by the simulator's own likelihood of {self.events:,} other events, measured"
            f" {self.date} by benchmarks/bench_direction_floor.py; the mean of all is known to"
            f" ± {self.figures['angle_mean_deg'].error:.2f}°"
        )


def read_toy_floor() -> ToyFloor:
    """Floor from the file beside this module."""
    stored = json.loads(files("workloads.direction.evaluation").joinpath(FLOOR_FILE).read_text(encoding="utf-8"))
    figures = {
        name: Floor(float(one["value"]), float(one["error"]))
        for name, one in stored["figures"].items()
        if name in DEFINITIONS
    }
    return ToyFloor(figures, int(stored["events"]), str(stored["date"]), str(stored["array"]))
