"""Reliability of the model's distribution of the number of muons."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.base.plots import DPI, Box
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.panel import GENERATED, steps
from workloads.muons.metrics.bundles import Float64

_BINS = 20


def reliability(events: EventPairs, pit_E: Float64) -> Figure:
    """Histogram and CDF of the probability integral transform of the real counts; uniform for a correct model."""
    drawn = Figure(figsize=(13.0, 4.6), dpi=DPI)
    left, right = (drawn.add_axes(Box(6.7 * place, 0.0, 6.2, 4.6).inside().part_of(drawn)) for place in range(2))
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    everyone = np.arange(len(pit_E))
    counts_DX = events.groups.histogram(pit_E, edges, everyone)
    steps(left, edges, counts_DX / events.groups.num_events * _BINS, color=GENERATED, label="real counts")
    left.axhline(1.0, color="0.4", linewidth=0.9, label="a right model")
    left.set_ylim(bottom=0.0)
    left.set_ylabel("density")
    left.legend(loc="lower center")
    cumulative = np.cumsum(counts_DX, axis=1) / events.groups.num_events
    deviation = cumulative - edges[1:]
    error = deviation[1:].std(0)
    right.axhline(0.0, color="0.4", linewidth=0.9)
    right.errorbar(edges[1:], deviation[0], error, fmt="o-", color=GENERATED, markersize=4, linewidth=1.2, capsize=2)
    reach = max(1.3 * float(np.abs(deviation[0]).max(initial=0.0) + error.max(initial=0.0)), 0.01)
    right.set_ylim(-reach, reach)
    right.set_ylabel("cumulative part − u")
    for axes in (left, right):
        axes.set_xlabel("u: the model's probability of fewer muons")
    return drawn
