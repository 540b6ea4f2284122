"""Input of all pictures: real and generated events for the same primaries, and their groups. Pure.

E events, P muons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workloads.muons.evaluation.plots.resample import Groups
from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64
from workloads.muons.metrics.sample import Sample

_NAMES = {0.0: "γ", 1.0: "p", 4.0: "He", 14.0: "CNO", 27.0: "Mg–Si", 56.0: "Fe"}
_MOST_MASSES = 6


@dataclass(frozen=True)
class EventPairs:
    """Real and generated events; event i of both has primary i."""

    sample: Sample
    generated: BundleArrays
    seed: int = 0

    @property
    def sides(self) -> tuple[BundleArrays, BundleArrays]:
        """Real and generated bundles."""
        return self.sample.bundles, self.generated

    @cached_property
    def groups(self) -> Groups:
        """Groups of showers, for the bootstrap bands."""
        return Groups(self.sample.shower_E, self.sample.weight_E, self.seed)

    @cached_property
    def energy_edges(self) -> Float64:
        """Edges in lg(E0/GeV) of up to 12 bins of equal width."""
        return _even(np.log10(self.sample.primary_E4[:, 0]), 12)

    @cached_property
    def depth_edges(self) -> Float64:
        """Edges in vertical depth (metres) of up to 12 bins of equal width."""
        return _even(self.sample.primary_E4[:, 3], 12)

    @cached_property
    def energy_quarters(self) -> list[tuple[str, Int64]]:
        """Events in each quarter of the primary energies, with a label; fewer groups if energies coincide."""
        log_energy_E = np.log10(self.sample.primary_E4[:, 0])
        edges = np.unique(np.quantile(log_energy_E, [0.0, 0.25, 0.5, 0.75, 1.0]))
        if len(edges) < 2:
            return [(f"lg($E_0$/GeV) = {log_energy_E[0]:.2f}", np.arange(len(log_energy_E)))]
        index_E = np.clip(np.searchsorted(edges, log_energy_E, side="right") - 1, 0, len(edges) - 2)
        return [
            (f"lg($E_0$/GeV) {edges[i]:.2f} – {edges[i + 1]:.2f}", np.flatnonzero(index_E == i))
            for i in range(len(edges) - 1)
        ]

    @cached_property
    def masses(self) -> list[tuple[str, Int64]]:
        """Events of each mass number, with a label; many masses are put in six groups."""
        mass_E = self.sample.primary_E4[:, 2]
        found = np.unique(mass_E)
        if len(found) <= _MOST_MASSES:
            return [(_NAMES.get(mass, f"A = {mass:g}"), np.flatnonzero(mass_E == mass)) for mass in found.tolist()]
        edges = np.unique(np.quantile(mass_E, np.linspace(0, 1, _MOST_MASSES + 1)))
        index_E = np.clip(np.searchsorted(edges, mass_E, side="right") - 1, 0, len(edges) - 2)
        return [(f"A {edges[i]:g} – {edges[i + 1]:g}", np.flatnonzero(index_E == i)) for i in range(len(edges) - 1)]


def _even(values: Float64, num_bins: int) -> Float64:
    low, high = values.min(), values.max()
    if high <= low:
        return np.array([low - 0.5, low + 0.5])
    return np.linspace(low, high, min(num_bins, max(len(np.unique(values)), 1)) + 1)
