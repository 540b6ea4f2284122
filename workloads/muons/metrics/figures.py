"""Pictures of generated and real bundles, drawn in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_LABELS = {
    "log10_count": "log10(1 + muons of an event)",
    "log10_energy": "log10(E / GeV) of muons",
    "log10_radius": "log10(r / m + 0.1) of muons",
    "log10_bundle_energy": "log10(sum of E / GeV) of events",
    "log10_leading_energy": "log10(largest E / GeV) of events",
    "weighted_radius_m": "energy-weighted mean r / m of events",
}
_DPI = 60
_COLUMNS = 3

Counts = npt.NDArray[np.int64]
Edges = npt.NDArray[np.float64]


def comparison(histograms: Mapping[str, tuple[Edges, Counts, Counts]], title: str) -> npt.NDArray[np.uint8]:
    """Image of each feature's real and generated distributions, with their ratio below. (height, width, 3).

    ``histograms``: feature -> edges (B + 1,), and the numbers of real and generated values in each bin.
    """
    figure = Figure(figsize=(14, 4.2 * -(-len(histograms) // _COLUMNS)), dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title)
    rows = -(-len(histograms) // _COLUMNS)
    # Fixed positions: matplotlib's layout takes as long as the whole drawing.
    outer = figure.add_gridspec(rows, _COLUMNS, left=0.06, right=0.99, top=0.93, bottom=0.08, hspace=0.3, wspace=0.22)
    for index, (name, (edges, real, generated)) in enumerate(histograms.items()):
        row, column = divmod(index, _COLUMNS)
        inner = outer[row, column].subgridspec(2, 1, height_ratios=[3, 1], hspace=0.05)
        upper = figure.add_subplot(inner[0])
        lower = figure.add_subplot(inner[1], sharex=upper)
        _distributions(upper, edges, real, generated)
        _ratio(lower, edges, real, generated)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel(_LABELS.get(name, name))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: npt.NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()  # type: ignore[no-untyped-call]
    return pixels


def _distributions(axes: Axes, edges: Edges, real: Counts, generated: Counts) -> None:
    for counts, label in ((real, "real"), (generated, "generated")):
        axes.stairs(counts / max(counts.sum(), 1), edges, label=label)
    if real.any() or generated.any():
        axes.set_yscale("log")
    axes.set_ylabel("fraction of all")
    axes.minorticks_off()
    axes.legend(loc="upper right")


def _ratio(axes: Axes, edges: Edges, real: Counts, generated: Counts) -> None:
    """Draw generated / real where real > 0, with the statistical error (one sigma, independent counts)."""
    filled = (real > 0) & (generated > 0)
    centres = ((edges[1:] + edges[:-1]) / 2)[filled]
    ratio = (generated[filled] / generated.sum()) / (real[filled] / real.sum())
    error = ratio * np.sqrt(1 / generated[filled] + 1 / real[filled])
    axes.axhline(1.0, linewidth=0.8, color="grey")
    axes.errorbar(centres, ratio, error, fmt=".", markersize=3, linewidth=0.8)
    axes.set_ylim(0, 2)
    axes.set_ylabel("ratio")
