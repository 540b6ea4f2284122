"""Frame of the pictures: axes in a row, and the events that a picture shows.

E events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from workloads.base.plots import BLACK, DPI, ORANGE, SERIES, Box
from workloads.base.random_streams import numpy_stream
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.metrics.angles import Bool, Float64, azimuth_zenith_rad
from workloads.direction.metrics.definitions import BASELINES
from workloads.direction.metrics.predicted import PredictedEvents
from workloads.direction.purposes import DirectionPurpose

MODEL, TRUTH = ORANGE, BLACK
COLOR_OF = {"": MODEL, "line": SERIES[0], "pandel": SERIES[2]}
"""Colours of the model and of the baselines."""
LABEL_OF = {"": "model", **BASELINES}
KINDS = ((TRACK, "tracks", SERIES[0]), (CASCADE, "cascades", SERIES[3]))
"""Topology, label, colour."""
BOOTSTRAPS = 100
_WIDTH, _HEIGHT = 6.4, 4.8


@dataclass(frozen=True)
class ShownEvents:
    """Events with a predicted direction, as pictures need them."""

    events: PredictedEvents
    seed: int

    @cached_property
    def angle_deg_E(self) -> Float64:
        """Angle between prediction and truth."""
        return np.degrees(self.events.angle_rad_E)

    @cached_property
    def azimuth_zenith_E(self) -> tuple[Float64, Float64]:
        """True azimuth and zenith, in radians."""
        return azimuth_zenith_rad(self.events.true_E3)

    @cached_property
    def kinds(self) -> list[tuple[str, str, Bool]]:
        """Label, colour and mask of tracks and cascades, as far as there are any; else of all events."""
        found = [(label, color, self.events.of_kind(kind)) for kind, label, color in KINDS]
        known = [(label, color, mask_E) for label, color, mask_E in found if mask_E.any()]
        return known or [("events", MODEL, self.events.of_kind(None))]

    def draws(self, number: int) -> Iterator[np.ndarray]:
        """Indices of bootstraps of ``number`` events."""
        random = numpy_stream(DirectionPurpose.PICTURE_BOOTSTRAPS, self.seed)
        for _ in range(BOOTSTRAPS):
            yield random.integers(0, number, number)


def row(columns: int, *, projection: str | None = None) -> tuple[Figure, list[Axes]]:
    """Figure with axes side by side."""
    drawn = Figure(figsize=(_WIDTH * columns, _HEIGHT), dpi=DPI)
    boxes = [Box(_WIDTH * place, 0.0, _WIDTH, _HEIGHT).inside().part_of(drawn) for place in range(columns)]
    return drawn, [drawn.add_axes(box, projection=projection) for box in boxes]


def use_log_angles(axes: Axes) -> None:
    """Set a logarithmic y axis, with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))


def equal_bins(values_E: Float64, most: int, smallest: int = 30) -> list[np.ndarray]:
    """Indices of the events in bins of about equal numbers, equal values together."""
    number = max(min(most, len(values_E) // smallest), 1)
    edges = np.unique(np.quantile(values_E, np.linspace(0, 1, number + 1)[1:-1]))
    bin_E = np.searchsorted(edges, values_E, side="right")
    return [np.flatnonzero(bin_E == index) for index in range(len(edges) + 1) if (bin_E == index).any()]
