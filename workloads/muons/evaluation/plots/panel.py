"""Panel of distributions with their ratio below: the form of nearly every picture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from workloads.base.plots import BLACK, DPI, ORANGE, Box
from workloads.muons.evaluation.plots.resample import band, ratio
from workloads.muons.metrics.bundles import Float64

REAL = BLACK
GENERATED = ORANGE
_UPPER_PART = 0.75
_WELL_KNOWN = 0.5
"""Relative width of a ratio's band up to which the axis must show it."""


@dataclass(frozen=True)
class PanelAxes:
    """Two axes, one above the other, with a common x axis."""

    upper: Axes
    lower: Axes


def figure(columns: int, rows: int = 1, *, width: float = 6.0, height: float = 5.2) -> tuple[Figure, list[PanelAxes]]:
    """Figure with ``columns`` × ``rows`` panels, row by row; width and height of a panel in inches."""
    whole = Figure(figsize=(width * columns, height * rows), dpi=DPI)
    places = []
    for row, column in itertools.product(range(rows), range(columns)):
        cell = Box(column * width, (rows - 1 - row) * height, width, height)
        upper, lower = cell.inside().cut(_UPPER_PART)
        first = whole.add_axes(upper.part_of(whole))
        first.tick_params(labelbottom=False)
        places.append(PanelAxes(first, whole.add_axes(lower.part_of(whole), sharex=first)))
    return whole, places


def steps(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str, label: str, linestyle: str = "-") -> None:
    """Draw a histogram with its bootstrap band."""
    value, low, high = band(draws_DX)
    # An empty bin has no point on a logarithmic axis.
    shown = np.where(value > 0, value, np.nan) if axes.get_yscale() == "log" else value
    axes.stairs(shown, edges, color=color, label=label, linewidth=1.5, linestyle=linestyle, baseline=None)
    if axes.get_yscale() == "log":
        low = np.maximum(low, 0.4 * value)  # a band that reaches 0 must not stretch the axis
    hidden = ~np.isfinite(low) | ~np.isfinite(shown)
    axes.fill_between(
        edges,
        _last_twice(np.where(hidden, np.nan, low)),
        _last_twice(np.where(hidden, np.nan, high)),
        step="post",
        color=color,
        alpha=0.25,
        linewidth=0,
    )


def use_log_scale(axes: Axes, draws: Sequence[Float64]) -> None:
    """Set a logarithmic y axis, unless there is no value above 0."""
    if any((draws_DX[0] > 0).any() for draws_DX in draws):
        axes.set_yscale("log")


def points(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str, label: str) -> None:
    """Draw values in bins as markers with errors."""
    value, low, high = band(draws_DX)
    shown = np.where(value > 0, value, np.nan)
    errors = np.array([np.minimum(shown - low, 0.6 * shown), high - shown])
    centres = (edges[1:] + edges[:-1]) / 2
    axes.errorbar(centres, shown, errors, fmt="o", color=color, markersize=4, linewidth=1.0, label=label)


def line(axes: Axes, edges: Float64, draws_DX: Float64, *, color: str) -> None:
    """Draw values in bins as a line through the bin centres, with a band."""
    value, low, high = band(draws_DX)
    centres = (edges[1:] + edges[:-1]) / 2
    axes.plot(centres, np.where(value > 0, value, np.nan), color=color, linewidth=1.4)
    axes.fill_between(centres, np.maximum(low, 0.4 * value), high, color=color, alpha=0.2, linewidth=0)


def compare(
    place: PanelAxes,
    edges: Float64,
    real_DX: Float64,
    generated_DX: Float64,
    *,
    labels: Sequence[str] = ("real", "generated"),
    log: bool = False,
) -> None:
    """Draw both distributions, and generated / real below."""
    colors = (REAL, GENERATED)
    if log:
        use_log_scale(place.upper, [real_DX, generated_DX])
    steps(place.upper, edges, real_DX, color=colors[0], label=labels[0])
    steps(place.upper, edges, generated_DX, color=colors[1], label=labels[1], linestyle="--")
    frame_ratio(place.lower, [ratio_steps(place.lower, edges, real_DX, generated_DX, color=colors[1])])
    place.upper.legend()


def ratio_steps(axes: Axes, edges: Float64, real_DX: Float64, generated_DX: Float64, *, color: str) -> Float64:
    """Draw generated / real with its band; fluctuations of the common primaries cancel. -> (1 + B, X)."""
    ratio_DX = ratio(generated_DX, real_DX)
    steps(axes, edges, ratio_DX, color=color, label="")
    return ratio_DX


def finish(place: PanelAxes, *, x: str, y: str, title: str = "") -> None:
    """Add labels, with units."""
    place.lower.set_xlabel(x)
    place.upper.set_ylabel(y)
    place.upper.set_title(title)
    for axes in (place.upper, place.lower):
        if axes.get_xscale() == "log":
            axes.xaxis.set_minor_formatter(NullFormatter())


def frame_ratio(axes: Axes, ratios: Sequence[Float64]) -> None:
    """Draw the line at 1; set limits that show the well-known ratios: ±20 % to a factor of 3."""
    reach = 0.2
    for ratio_DX in ratios:
        value, low, high = band(ratio_DX)
        known = np.isfinite(value) & (high - low < _WELL_KNOWN * value)
        reach = max(reach, 1.2 * float(np.max(np.abs(value[known] - 1), initial=0.0)))
    reach = min(reach, 2.0)
    axes.axhline(1.0, color="0.4", linewidth=0.9, zorder=0)
    axes.set_ylim(max(1 - reach, 0.0), 1 + reach)
    axes.set_ylabel("gen. / real")


def _last_twice(values: Float64) -> Float64:
    return np.append(values, values[-1])
