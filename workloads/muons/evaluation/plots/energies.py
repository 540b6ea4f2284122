"""Energies of muons and of bundles."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.panel import compare, figure, finish
from workloads.muons.metrics.bundles import BundleArrays, Float64

_PER_DECADE = 10


def spectrum(events: EventPairs) -> Figure:
    """Spectrum E dN/dE of muons at depth."""
    drawn, (place,) = figure(1, width=7.0)
    values = [(side.energy_gev_P, side.event_P) for side in events.sides]
    edges = _decades(np.concatenate([energy for energy, _ in values]))
    place.upper.set_xscale("log")
    width = np.diff(np.log(edges))
    real, generated = (
        events.groups.histogram(energy, edges, owner) / events.groups.num_events / width for energy, owner in values
    )
    compare(place, edges, real, generated, log=True)
    finish(place, x="muon energy at depth E / GeV", y="E dN/dE per event")
    return drawn


def bundle_energies(events: EventPairs) -> Figure:
    """Energies of the leading muon and of the bundle."""
    drawn, places = figure(2, width=6.2)
    for place, name, label in (
        (places[0], "log10_leading_energy", "energy of the leading muon / GeV"),
        (places[1], "log10_bundle_energy", "energy of the bundle / GeV"),
    ):
        values = [_of_events(side, name) for side in events.sides]
        edges = _decades(np.concatenate([energy for energy, _ in values]))
        place.upper.set_xscale("log")
        width = np.diff(np.log10(edges))
        real, generated = (
            events.groups.histogram(energy, edges, owner) / events.groups.num_events / width for energy, owner in values
        )
        compare(place, edges, real, generated, log=True)
        finish(place, x=label, y="events per decade, fraction of all")
    return drawn


def _of_events(side: BundleArrays, name: str) -> tuple[Float64, np.ndarray]:
    return 10 ** side.features[name], side.filled_F


def _decades(energy_gev: Float64) -> Float64:
    """Bins of equal width in lg E, without the outermost few energies, which are too few for a distribution."""
    if not len(energy_gev):
        return np.array([1.0, 10.0])
    low, high = np.log10(np.quantile(energy_gev, [1e-5, 1 - 1e-5]))
    return 10 ** np.linspace(low, max(high, low + 0.1), max(int(_PER_DECADE * (high - low)), 2) + 1)
