"""Distances of muons to the shower axis and to each other, and their correlation with energy."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.base.random_streams import numpy_stream
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.panel import compare, figure, finish
from workloads.muons.evaluation.plots.resample import bins_of
from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64
from workloads.muons.purposes import MuonPurpose

_MOST_SHOWN = 0.9995
"""Fraction of the muons that a linear axis shows."""
_MOST_PAIRS = 50
_BINS = 40


def radii(events: EventPairs) -> Figure:
    """Distribution of r, and the density of muons in the plane perpendicular to the axis."""
    drawn, (linear, density) = figure(2, width=6.2)
    both = np.concatenate([side.radius_m_P for side in events.sides])
    edges = np.linspace(0.0, _far(both), _BINS + 1)
    compare(linear, edges, *(_per_event(events, side, edges) / np.diff(edges) for side in events.sides), log=True)
    finish(linear, x="distance to the axis r / m", y="dN/dr per event / m⁻¹")
    edges = np.geomspace(max(np.quantile(both, 0.001) if len(both) else 0.1, 1e-2), _far(both), _BINS + 1)
    density.upper.set_xscale("log")
    compare(density, edges, *(_per_event(events, side, edges) / np.diff(edges**2) for side in events.sides), log=True)
    finish(density, x="distance to the axis r / m", y="dN/dr² per event / m⁻²")
    return drawn


def radius_and_energy(events: EventPairs) -> Figure:
    """Mean distance against energy, and mean energy against distance."""
    drawn, (of_radius, of_energy) = figure(2, width=6.2)
    energy = np.concatenate([side.energy_gev_P for side in events.sides])
    edges = np.geomspace(*_inner(energy, (1.0, 10.0)), 21)
    of_radius.upper.set_xscale("log")
    real, generated = (_mean(events, side, side.energy_gev_P, side.radius_m_P, edges) for side in events.sides)
    compare(of_radius, edges, real, generated)
    finish(of_radius, x="muon energy at depth E / GeV", y="mean distance to the axis ⟨r⟩ / m")
    radius = np.concatenate([side.radius_m_P for side in events.sides])
    edges = np.geomspace(*_inner(radius, (1.0, 10.0)), 21)
    of_energy.upper.set_xscale("log")
    real, generated = (_mean(events, side, side.radius_m_P, side.energy_gev_P, edges) for side in events.sides)
    compare(of_energy, edges, real, generated, log=True)
    finish(of_energy, x="distance to the axis r / m", y="mean muon energy ⟨E⟩ / GeV")
    return drawn


def decoherence(events: EventPairs) -> Figure:
    """Distances between two muons of an event."""
    drawn, (place,) = figure(1, width=7.0)
    pairs = [_pair_distances(side, events.seed) for side in events.sides]
    edges = np.linspace(0.0, _far(np.concatenate([distance for distance, _, _ in pairs])), _BINS + 1)
    real, generated = (
        events.groups.sums(bins_of(distance, edges), len(edges) - 1, owner, weight)
        / events.groups.num_events
        / np.diff(edges)
        for distance, owner, weight in pairs
    )
    compare(place, edges, real, generated, log=True)
    finish(place, x="distance between two muons D / m", y="pairs of muons per event / m⁻¹")
    return drawn


def _pair_distances(side: BundleArrays, seed: int) -> tuple[Float64, Int64, Float64]:
    """Distance, event and weight of pairs of muons: all pairs of a small event, random ones of a large one.

    The weights of an event's pairs sum to 1: else the largest event would dominate.
    """
    counts_E = side.counts_E
    num_pairs_E = np.minimum(counts_E * (counts_E - 1) // 2, _MOST_PAIRS)
    event_Q = np.repeat(np.arange(len(counts_E)), num_pairs_E)
    if not len(event_Q):
        return np.zeros(0), event_Q, np.zeros(0)
    random = numpy_stream(MuonPurpose.PICTURE_PAIRS, seed)
    counts_Q = counts_E[event_Q]
    first_Q = (random.random(len(event_Q)) * counts_Q).astype(np.int64)
    second_Q = (random.random(len(event_Q)) * (counts_Q - 1)).astype(np.int64)
    second_Q += second_Q >= first_Q
    start_Q = (np.cumsum(counts_E) - counts_E)[event_Q]
    one_Q, other_Q = start_Q + first_Q, start_Q + second_Q
    distance_Q = np.hypot(side.x_m_P[one_Q] - side.x_m_P[other_Q], side.y_m_P[one_Q] - side.y_m_P[other_Q])
    return distance_Q, event_Q, 1.0 / num_pairs_E[event_Q]


def _per_event(events: EventPairs, side: BundleArrays, edges: Float64) -> Float64:
    return events.groups.histogram(side.radius_m_P, edges, side.event_P) / events.groups.num_events


def _mean(events: EventPairs, side: BundleArrays, at: Float64, values: Float64, edges: Float64) -> Float64:
    bins = bins_of(at, edges)
    number = events.groups.sums(bins, len(edges) - 1, side.event_P)
    return events.groups.sums(bins, len(edges) - 1, side.event_P, values) / np.where(number > 0, number, np.nan)


def _far(metres: Float64) -> float:
    return float(np.quantile(metres, _MOST_SHOWN)) if len(metres) else 1.0


def _inner(values: Float64, nothing: tuple[float, float]) -> tuple[float, float]:
    """Range of the values without the outermost thousandth on each side."""
    if not len(values):
        return nothing
    low, high = np.quantile(values, [0.001, 0.999])
    low = max(float(low), 1e-3)
    return low, max(float(high), 1.01 * low)
