"""Flux of primaries: energy, mass, zenith and recorded depth.

Shapes: E events, G groups of nuclei.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workloads.muons.geometry import slant_depth_m, vertical_depth_m
from workloads.muons.simulator.config import GROUP_CHARGE, GROUP_MASS, SimulatorConfig
from workloads.muons.simulator.propagation import Float32, Float64

# H3a, Gaisser 2012 (arXiv:1111.6675): three populations (rows) of five groups (columns),
# dN/dE = sum_p norm E^-index exp(-E / (rigidity_p Z)), in GeV^-1 m^-2 sr^-1 s^-1.
H3A_NORM = np.array(
    [[7860.0, 3550.0, 2200.0, 1430.0, 2120.0], [20.0, 20.0, 13.4, 13.4, 13.4], [1.7, 1.7, 1.14, 1.14, 1.14]]
)
H3A_INDEX = np.array([[2.66, 2.58, 2.63, 2.67, 2.63], [2.4] * 5, [2.4] * 5])
H3A_RIGIDITY_GV = np.array([4e6, 30e6, 2e9])

_CDF_POINTS = 4001
"""Points of the inverse CDF in ln E: 0.4 % apart over 7 decades."""


@dataclass(frozen=True)
class SimulatedPrimaries:
    """Primary and depth of each event, before its muons are drawn."""

    energy_gev_E: Float64
    mass_E: Float64
    cos_zenith_E: Float64
    depth_m_E: Float64
    """Depth in vertical metres, also if the file's column is a slant depth."""

    def __len__(self) -> int:
        return len(self.energy_gev_E)

    def columns(self, config: SimulatorConfig) -> Float32:
        """Values of the file's ``primary`` column: energy_gev, zenith_rad, mass_a, depth_m. (E, 4)."""
        depth_m_E = self.depth_m_E
        if config.depth_kind == "slant":
            depth_m_E = slant_depth_m(self.cos_zenith_E, depth_m_E, config.earth_radius_m)
        columns_E4 = np.empty((len(self), 4), np.float32)
        columns_E4[:, 0] = self.energy_gev_E
        columns_E4[:, 1] = np.arccos(self.cos_zenith_E)
        columns_E4[:, 2] = self.mass_E
        columns_E4[:, 3] = depth_m_E
        return columns_E4

    @classmethod
    def from_columns(cls, columns_E4: npt.ArrayLike, config: SimulatorConfig) -> SimulatedPrimaries:
        """Primaries from a file's ``primary`` column, for a second set of muons."""
        energy_gev_E, zenith_rad_E, mass_E, depth_m_E = np.asarray(columns_E4, np.float64).T
        cos_zenith_E = np.cos(zenith_rad_E)
        if config.depth_kind == "slant":
            depth_m_E = vertical_depth_m(cos_zenith_E, depth_m_E, config.earth_radius_m)
        return cls(energy_gev_E.copy(), mass_E.copy(), cos_zenith_E, depth_m_E.copy())


def h3a_flux(energy_gev: Float64, group: int) -> Float64:
    """Flux of one group of nuclei, GeV^-1 m^-2 sr^-1 s^-1 (H3a, Gaisser 2012)."""
    flux = np.zeros_like(energy_gev)
    for norm, index, rigidity_gv in zip(H3A_NORM[:, group], H3A_INDEX[:, group], H3A_RIGIDITY_GV, strict=True):
        flux += norm * energy_gev**-index * np.exp(-energy_gev / (rigidity_gv * GROUP_CHARGE[group]))
    return flux


def sample_primaries(num_events: int, config: SimulatorConfig, rng: np.random.Generator) -> SimulatedPrimaries:
    """Independent primaries: energy and mass from the spectrum, zenith for a horizontal surface, gridded depth."""
    if config.spectrum == "h3a":
        energy_gev_E, group_E = _sample_h3a(num_events, config, rng)
    else:
        group_E = _choose(config.mass_fractions, num_events, rng)
        energy_gev_E = _sample_powerlaw(num_events, config, rng)
    # Flux through a horizontal surface ~ sin·cos dθ, so cos² is uniform.
    cos2_min = np.cos(np.deg2rad(config.theta_max_deg)) ** 2
    cos_zenith_E = np.sqrt(cos2_min + (1.0 - cos2_min) * rng.random(num_events))
    if config.depth_steps:
        grid_m = np.linspace(config.depth_min_m, config.depth_max_m, config.depth_steps)
        depth_m_E = grid_m[rng.integers(0, config.depth_steps, num_events)]
    else:
        depth_m_E = rng.uniform(config.depth_min_m, config.depth_max_m, num_events)
    return SimulatedPrimaries(energy_gev_E, np.asarray(GROUP_MASS)[group_E], cos_zenith_E, depth_m_E)


def _choose(shares_G: Sequence[float] | Float64, num_events: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Index of a group for each event, in proportion to the shares."""
    cumulative_G = np.cumsum(shares_G)
    group_E: npt.NDArray[np.intp] = np.searchsorted(
        cumulative_G[:-1] / cumulative_G[-1], rng.random(num_events), side="right"
    )
    return group_E


def _sample_powerlaw(num_events: int, config: SimulatorConfig, rng: np.random.Generator) -> Float64:
    """Energies from E^-gamma between the two limits, by its closed-form inverse."""
    low, high, share_E = config.energy_min_gev, config.energy_max_gev, rng.random(num_events)
    if abs(config.gamma - 1.0) < 1e-9:
        energy_gev_E: Float64 = low * (high / low) ** share_E
        return energy_gev_E
    power = 1.0 - config.gamma
    energy_gev_E = low * (1.0 + share_E * ((high / low) ** power - 1.0)) ** (1.0 / power)
    return energy_gev_E


def _sample_h3a(
    num_events: int, config: SimulatorConfig, rng: np.random.Generator
) -> tuple[Float64, npt.NDArray[np.intp]]:
    """Energies and groups from the natural flux, by one inverse CDF for each group."""
    log_energy, cdf_GX, total_G = _h3a_tables(config.energy_min_gev, config.energy_max_gev)
    group_E = _choose(total_G, num_events, rng)
    share_E = rng.random(num_events)
    energy_gev_E = np.empty(num_events)
    for group in range(len(GROUP_MASS)):
        of_group_E = group_E == group
        energy_gev_E[of_group_E] = np.exp(np.interp(share_E[of_group_E], cdf_GX[group], log_energy))
    return energy_gev_E, group_E


@lru_cache(maxsize=8)
def _h3a_tables(energy_min_gev: float, energy_max_gev: float) -> tuple[Float64, Float64, Float64]:
    """Table: ln E, the CDF of each group at these points, and each group's total flux."""
    log_energy = np.linspace(np.log(energy_min_gev), np.log(energy_max_gev), _CDF_POINTS)
    energy_gev = np.exp(log_energy)
    weight_GX = np.stack([h3a_flux(energy_gev, group) * energy_gev for group in range(len(GROUP_MASS))])
    step_GX = 0.5 * (weight_GX[:, 1:] + weight_GX[:, :-1]) * np.diff(log_energy)
    cumulative_GX = np.concatenate([np.zeros((len(GROUP_MASS), 1)), np.cumsum(step_GX, axis=1)], axis=1)
    total_G = cumulative_GX[:, -1]
    return log_energy, cumulative_GX / total_G[:, None], total_G
