"""Number of muons: its distribution, mean and spread, and the fraction of events without muons."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.base.plots import SERIES
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.panel import (
    PanelAxes,
    compare,
    figure,
    finish,
    frame_ratio,
    line,
    points,
    use_log_scale,
)
from workloads.muons.evaluation.plots.resample import bins_of, ratio
from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64


def counts(events: EventPairs) -> Figure:
    """Distribution of N over all primaries."""
    drawn, places = figure(1, width=7.0)
    _counts(places[0], events, np.arange(len(events.sample)), "")
    return drawn


def counts_by_energy(events: EventPairs) -> Figure:
    """Distributions of N in quarters of the primary energy."""
    quarters = events.energy_quarters
    drawn, places = figure(2, -(-len(quarters) // 2), width=5.6, height=4.6)
    for place, (label, chosen) in zip(places, quarters, strict=False):
        _counts(place, events, chosen, label)
    for place in places[len(quarters) :]:  # energies coincide
        place.upper.set_visible(False)
        place.lower.set_visible(False)
    return drawn


def mean_and_spread(events: EventPairs) -> Figure:
    """Mean and standard deviation of N against E0, for each mass."""
    drawn, (of_mean, of_spread) = figure(2, width=6.2)
    edges = events.energy_edges
    for place, power in ((of_mean, 1), (of_spread, 2)):
        ratios = []
        of_masses = [
            [_moment(events, side, chosen, edges, power) for side in events.sides] for _, chosen in events.masses
        ]
        use_log_scale(place.upper, [draws_DX for both in of_masses for draws_DX in both])
        for color, (label, _), (real, generated) in zip(SERIES, events.masses, of_masses, strict=False):
            points(place.upper, edges, real, color=color, label=label)
            line(place.upper, edges, generated, color=color)
            ratios.append(ratio(generated, real))
            line(place.lower, edges, ratios[-1], color=color)
        frame_ratio(place.lower, ratios)
    of_mean.upper.plot([], [], color="0.3", linestyle="", marker="o", markersize=4, label="real")
    of_mean.upper.plot([], [], color="0.3", linestyle="-", label="generated")
    of_mean.upper.legend(ncols=2)
    finish(of_mean, x="lg($E_0$ / GeV)", y="mean number of muons ⟨N⟩")
    finish(of_spread, x="lg($E_0$ / GeV)", y="standard deviation of N")
    return drawn


def empty_by_depth(events: EventPairs) -> Figure:
    """Probability of N = 0 against depth."""
    drawn, (place,) = figure(1, width=7.0)
    edges = events.depth_edges
    depth_E = events.sample.primary_E4[:, 3]
    everyone = np.arange(len(depth_E))
    all_DX = events.groups.histogram(depth_E, edges, everyone)
    real, generated = (
        events.groups.histogram(depth_E[side.counts_E == 0], edges, everyone[side.counts_E == 0])
        / np.where(all_DX > 0, all_DX, np.nan)
        for side in events.sides
    )
    compare(place, edges, real, generated)
    place.upper.set_ylim(bottom=0)
    finish(place, x="vertical depth / m", y="P(N = 0)")
    return drawn


def _counts(place: PanelAxes, events: EventPairs, chosen: Int64, title: str) -> None:
    most = max(int(side.counts_E[chosen].max(initial=1)) for side in events.sides)
    edges = _edges(most)
    of_all = events.groups.sums(np.zeros(len(chosen), np.int64), 1, chosen)
    densities, empty = [], []
    for side in events.sides:
        counts_C = side.counts_E[chosen].astype(np.float64)
        densities.append(ratio(events.groups.histogram(counts_C, edges, chosen), of_all) / np.diff(edges))
        empty.append(float(ratio(events.groups.sums(np.where(counts_C == 0, 0, -1), 1, chosen), of_all)[0, 0]))
    place.upper.set_xscale("log")
    labels = [f"{name}, P(N = 0) = {part:.3f}" for name, part in zip(("real", "generated"), empty, strict=True)]
    compare(place, edges, *densities, labels=labels, log=True)
    finish(place, x="number of muons N", y="probability P(N)", title=title)


def _edges(most: int) -> Float64:
    """Bin edges between integers: one integer a bin at first, then up to 14 bins a decade."""
    edges: Float64 = np.unique(np.round(np.geomspace(1, most + 1, max(int(14 * np.log10(most + 1)), 2)))) - 0.5
    return edges


def _moment(events: EventPairs, side: BundleArrays, chosen: Int64, edges: Float64, power: int) -> Float64:
    """Mean (power 1) or standard deviation (2) of N in bins of lg E0. (1 + B, X)."""
    bins = bins_of(np.log10(events.sample.primary_E4[chosen, 0]), edges)
    counts_C = side.counts_E[chosen].astype(np.float64)
    number = events.groups.sums(bins, len(edges) - 1, chosen)
    number = np.where(number > 0, number, np.nan)
    mean = events.groups.sums(bins, len(edges) - 1, chosen, counts_C) / number
    if power == 1:
        return mean
    square = events.groups.sums(bins, len(edges) - 1, chosen, counts_C**2) / number
    return np.sqrt(np.maximum(square - mean**2, 0.0))
