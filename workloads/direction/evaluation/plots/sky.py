"""The sky: where predictions point, where they err, and whether the zenith is biased."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.direction.evaluation.plots.frame import MODEL, TRUTH, ShownEvents, equal_bins, row
from workloads.direction.metrics.angles import Float64, azimuth_zenith_rad

_ACROSS, _UP = 24, 12
"""Cells of the sky, of equal solid angle."""
_BINS = 10


def sky(shown: ShownEvents) -> Figure:
    """Hammer maps of cells of equal area: density of the predictions, and median angle by true direction."""
    drawn, (left, right) = row(2, projection="hammer")
    azimuth_edges = np.linspace(-np.pi, np.pi, _ACROSS + 1)
    cosine_edges = np.linspace(-1, 1, _UP + 1)
    latitude_edges = np.arcsin(cosine_edges)
    number = len(shown.angle_deg_E)
    predicted = _cells(*azimuth_zenith_rad(shown.events.direction_E3))
    true = _cells(*shown.azimuth_zenith_E)
    density = np.bincount(predicted, minlength=_ACROSS * _UP) * (_ACROSS * _UP / number)
    median = np.array(
        [
            np.median(angles) if len(angles := shown.angle_deg_E[true == cell]) else np.nan
            for cell in range(_ACROSS * _UP)
        ]
    )
    for axes, values, label, colors in (
        (left, density, "predictions / uniform", "viridis"),
        (right, median, "median angle / °, by true direction", "magma"),
    ):
        mesh = axes.pcolormesh(azimuth_edges, latitude_edges, values.reshape(_UP, _ACROSS), cmap=colors)
        axes.grid(True, color="0.7", linewidth=0.4)
        axes.tick_params(labelsize=7, labelcolor="0.5")
        drawn.colorbar(mesh, ax=axes, orientation="horizontal", label=label, shrink=0.8, pad=0.06)
    return drawn


def zenith(shown: ShownEvents) -> Figure:
    """Distribution of the predicted and the true cos zenith, and the mean shift of the zenith."""
    drawn, (left, right) = row(2)
    predicted_E, true_E = azimuth_zenith_rad(shown.events.direction_E3)[1], shown.azimuth_zenith_E[1]
    edges = np.linspace(-1, 1, 21)
    for values_E, color, label in ((true_E, TRUTH, "true"), (predicted_E, MODEL, "predicted")):
        left.stairs(np.histogram(np.cos(values_E), edges)[0] / len(values_E), edges, color=color, label=label)
    left.set_ylim(bottom=0)
    left.set_xlabel("cos zenith (1: from above)")
    left.set_ylabel("part of the events")
    left.legend()
    for label, color, mask_E in shown.kinds:
        cosine, shift = np.cos(true_E[mask_E]), np.degrees(predicted_E - true_E)[mask_E]
        bins = equal_bins(cosine, _BINS)
        middle = [np.median(cosine[one]) for one in bins]
        error = [shift[one].std() / np.sqrt(len(one)) for one in bins]
        right.errorbar(middle, [shift[one].mean() for one in bins], error, fmt="o-", color=color, label=label)
    right.axhline(0.0, color=TRUTH, linewidth=0.9)
    right.set_xlabel("true cos zenith")
    right.set_ylabel("mean of predicted − true zenith / °")
    right.legend()
    return drawn


def _cells(azimuth_E: Float64, zenith_E: Float64) -> np.ndarray:
    """Number of each direction's cell: row by row from below, azimuth from -π."""
    turned_E = (azimuth_E + np.pi) % (2 * np.pi)
    across_E = np.minimum((turned_E / (2 * np.pi) * _ACROSS).astype(np.int64), _ACROSS - 1)
    up_E = np.minimum(((np.cos(zenith_E) + 1) / 2 * _UP).astype(np.int64), _UP - 1)
    return up_E * _ACROSS + across_E
