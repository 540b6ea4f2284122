"""From the surface to the detector: geometry of the track and the muon's energy loss.

All functions work element by element on arrays of events or muons. Continuous loss only: real losses are
stochastic and widen the energies at depth, most for muons above a TeV.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.simulator.config import SimulatorConfig

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

# Chirkin, hep-ph/0407078: fit of the cosine of the zenith angle where the muons are made.
_LOCAL_ANGLE = (0.102573, -0.068287, 0.958633, 0.0407253, 0.817285)


def slant_depth_m(cos_zenith: Float64, depth_m: Float64, config: SimulatorConfig) -> Float64:
    """Metres along the track from the surface of a round Earth to ``depth_m`` vertical metres (Muonitron).

    The zenith angle is that at the detector.
    """
    radius_m = config.earth_radius_m
    below_m = radius_m - depth_m
    along_m = cos_zenith * below_m
    # An operator order that keeps digits: 2rd - d² is small against r², and the root is close to `along_m`.
    extra_m2 = 2.0 * radius_m * depth_m - depth_m**2
    return extra_m2 / (np.sqrt(extra_m2 + along_m**2) + along_m)


def vertical_depth_m(cos_zenith: Float64, slant_m: Float64, config: SimulatorConfig) -> Float64:
    """The inverse of slant_depth_m: vertical metres of a point ``slant_m`` along the track."""
    radius_m = config.earth_radius_m
    across_m2 = slant_m**2 * (1.0 - cos_zenith**2)
    # r - sqrt(r² - across²), written without the difference of two large numbers.
    sagitta_m = across_m2 / (radius_m + np.sqrt(radius_m**2 - across_m2))
    return slant_m * cos_zenith + sagitta_m


def vertical_depth_mwe(depth_m: Float64, config: SimulatorConfig) -> Float64:
    """Metres of water equivalent above ``depth_m``: a light layer, then ice (MuonGun densities)."""
    firn_m = np.minimum(depth_m, config.firn_m)
    return firn_m * config.firn_density + (depth_m - firn_m) * config.ice_density


def cos_local_zenith(cos_zenith: Float64) -> Float64:
    """Cosine of the zenith angle at production height, on a round Earth (Chirkin, hep-ph/0407078)."""
    p0, p1, p2, p3, p4 = _LOCAL_ANGLE
    squared = cos_zenith**2 + p0**2 + p1 * cos_zenith**p2 + p3 * cos_zenith**p4
    return np.sqrt(squared / (1.0 + p0**2 + p1 + p3))


def surface_energy_gev(energy_gev: Float64 | float, slant_mwe: Float64, config: SimulatorConfig) -> Float64:
    """Energy a muon needs at the surface to have ``energy_gev`` after ``slant_mwe`` (dE/dX = -(a + bE))."""
    critical_gev = config.loss_a_gev_per_mwe / config.loss_b_per_mwe
    return (energy_gev + critical_gev) * np.exp(config.loss_b_per_mwe * slant_mwe) - critical_gev


def energy_at_depth_gev(surface_gev: Float64, slant_mwe: Float64, config: SimulatorConfig) -> Float64:
    """Energy left after ``slant_mwe``; negative if the muon stopped before. Inverse of surface_energy_gev."""
    critical_gev = config.loss_a_gev_per_mwe / config.loss_b_per_mwe
    return (surface_gev + critical_gev) * np.exp(-config.loss_b_per_mwe * slant_mwe) - critical_gev
