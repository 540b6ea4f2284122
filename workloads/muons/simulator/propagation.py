"""Propagation from the surface to the detector: overburden, inclination at production, and energy loss of muons.

All functions work element by element on arrays of events or muons. Continuous loss only: real losses are
stochastic and widen the energies at depth, most for muons above a TeV.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workloads.muons.simulator.config import SimulatorConfig

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

# Chirkin, hep-ph/0407078: fit of the cosine of the zenith angle at the production of the muons.
_LOCAL_ANGLE = (0.102573, -0.068287, 0.958633, 0.0407253, 0.817285)


def vertical_depth_mwe(depth_m: Float64, config: SimulatorConfig) -> Float64:
    """Overburden of ``depth_m`` in metres of water equivalent: a light layer, then ice (MuonGun densities)."""
    firn_m = np.minimum(depth_m, config.firn_m)
    return firn_m * config.firn_density + (depth_m - firn_m) * config.ice_density


def cos_local_zenith(cos_zenith: Float64) -> Float64:
    """Cosine of the zenith angle at production height, on a round Earth (Chirkin, hep-ph/0407078)."""
    p0, p1, p2, p3, p4 = _LOCAL_ANGLE
    squared = cos_zenith**2 + p0**2 + p1 * cos_zenith**p2 + p3 * cos_zenith**p4
    return np.sqrt(squared / (1.0 + p0**2 + p1 + p3))


def surface_energy_gev(energy_gev: Float64 | float, slant_mwe: Float64, config: SimulatorConfig) -> Float64:
    """Energy at the surface of a muon with ``energy_gev`` after ``slant_mwe`` (dE/dX = -(a + bE))."""
    critical_gev = config.loss_a_gev_per_mwe / config.loss_b_per_mwe
    return (energy_gev + critical_gev) * np.exp(config.loss_b_per_mwe * slant_mwe) - critical_gev
