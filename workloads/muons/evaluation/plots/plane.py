"""Joint distribution of muon energy and distance to the axis."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from workloads.base.plots import DPI, Box
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64

_BINS = 40
_DARKEST = 1e-3
"""Density of the darkest colour, as a fraction of the largest."""
_FEW = 5.0
"""Fewest real muons in a cell for which its ratio is drawn."""


def energy_and_radius(events: EventPairs) -> Figure:
    """Density of muons over lg E and lg r, real and generated, and their ratio."""
    energy = np.concatenate([side.features["log10_energy"] for side in events.sides])
    radius = np.concatenate([side.features["log10_radius"] for side in events.sides])
    x_edges, y_edges = _edges(energy), _edges(radius)
    real, generated = (_density(events, side, x_edges, y_edges) for side in events.sides)
    drawn = Figure(figsize=(16.6, 4.9), dpi=DPI)
    places = [drawn.add_axes(Box(left, 0.6, 4.3, 3.95).part_of(drawn)) for left in (0.9, 5.5, 11.2)]
    bars = [drawn.add_axes(Box(left, 0.6, 0.2, 3.95).part_of(drawn)) for left in (9.95, 15.65)]
    positive = np.concatenate([values[values > 0] for values in (real, generated)])
    most = float(positive.max()) if len(positive) else 1.0
    norm = LogNorm(most * _DARKEST, most)
    for axes, values, title in ((places[0], real, "real"), (places[1], generated, "generated")):
        mesh = axes.pcolormesh(x_edges, y_edges, np.where(values > 0, values, np.nan).T, norm=norm, cmap="viridis")
        axes.set_title(title)
    drawn.colorbar(mesh, cax=bars[0], label="fraction of muons per cell")
    enough = real * len(events.sample.bundles.event_P) >= _FEW
    ratio = np.full(real.shape, np.nan)
    np.divide(generated, real, out=ratio, where=enough)
    mesh = places[2].pcolormesh(x_edges, y_edges, ratio.T, norm=LogNorm(0.5, 2.0), cmap="PuOr_r")
    bar = drawn.colorbar(mesh, cax=bars[1], label="generated / real", extend="both", ticks=[0.5, 0.7, 1.0, 1.4, 2.0])
    bar.ax.set_yticklabels(["0.5", "0.7", "1", "1.4", "2"])
    bar.ax.minorticks_off()
    places[2].set_title(f"ratio, where {_FEW:g} real muons or more are")
    places[1].tick_params(labelleft=False)
    for axes in places:
        axes.set_xlabel("lg(E / GeV)")
    places[0].set_ylabel(f"lg(r / m + {RADIUS_OFFSET_M:g})")
    return drawn


def _density(events: EventPairs, side: BundleArrays, x_edges: Float64, y_edges: Float64) -> Float64:
    weight_E = events.sample.weight_E
    weights = None if weight_E is None else weight_E[side.event_P]
    values = side.features["log10_energy"], side.features["log10_radius"]
    found = np.histogram2d(*values, bins=(x_edges, y_edges), weights=weights)[0]
    result: Float64 = found / max(found.sum(), 1e-300)
    return result


def _edges(values: Float64) -> Float64:
    low, high = np.quantile(values, [0.0005, 0.9995]) if len(values) else (0.0, 1.0)
    return np.linspace(low, max(high, low + 0.1), _BINS + 1)
