"""Muon bundles at depths in the ice, from showers of hadronic interactions. S showers, D depths, P muons."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from workloads.muons.columns import slant_depth_m
from workloads.muons.showers.cascade import LEAST_COS_ZENITH, MOST_ENERGY_GEV, muons_at_ground
from workloads.muons.showers.ice import MuonsInIce
from workloads.muons.showers.interactions import LEAST_THRESHOLD_GEV, Library
from workloads.muons.showers.particles import Float64, Int64

FIRN_M, FIRN_DENSITY, ICE_DENSITY = 200.0, 0.832, 0.917
"""Thickness of the light upper layer, its density relative to water, and that of the ice below (MuonGun)."""

_SHOWERS_AT_A_TIME = 500
_LEAST_LOSS_GEV_PER_MWE, _LEAST_LOSS_PER_MWE = 0.255, 1e-4
"""Loss of a lucky muon: of those that start with less than it takes, fewer than 1 in 200 arrive."""


def vertical_depth_mwe(depth_m: Float64) -> Float64:
    """Return the overburden of a vertical depth in metres of water equivalent: a light layer, then ice."""
    firn_m = np.minimum(depth_m, FIRN_M)
    return firn_m * FIRN_DENSITY + (depth_m - firn_m) * ICE_DENSITY


_ice = cache(MuonsInIce)


def bundles_of_showers(
    energy_gev_S: Float64,
    mass_S: Int64,
    cos_S: Float64,
    depth_m_SD: Float64,
    library: Library,
    rng: np.random.Generator,
    *,
    field: bool = False,
) -> tuple[Int64, npt.NDArray[np.float32]]:
    """Return the number of muons of each shower at its depths, (S, D), and the muons, (P, 3), in this order.

    ``depth_m_SD``: vertical metres, ascending, infinite for no further depth. A muon is [energy_gev, x_m, y_m].
    Raises BadInputError for primaries that the simulation doesn't reach.
    """
    num, num_depths = depth_m_SD.shape
    if num > _SHOWERS_AT_A_TIME:
        parts = [slice(first, first + _SHOWERS_AT_A_TIME) for first in range(0, num, _SHOWERS_AT_A_TIME)]
        found = [
            bundles_of_showers(energy_gev_S[p], mass_S[p], cos_S[p], depth_m_SD[p], library, rng, field=field)
            for p in parts
        ]
        return np.concatenate([counts for counts, _ in found]), np.concatenate([muons for _, muons in found])
    require_known(float(energy_gev_S.max(initial=0)), float(cos_S.min(initial=1)))
    reached_SD = np.isfinite(depth_m_SD)
    depth_m_SD = np.where(reached_SD, depth_m_SD, depth_m_SD[:, :1])
    slant_m_SD = slant_depth_m(cos_S[:, None], depth_m_SD)
    slant_mwe_SD = slant_m_SD * vertical_depth_mwe(depth_m_SD) / depth_m_SD
    threshold_gev_S = _LEAST_LOSS_GEV_PER_MWE / _LEAST_LOSS_PER_MWE * np.expm1(_LEAST_LOSS_PER_MWE * slant_mwe_SD[:, 0])
    if (threshold_gev_S < LEAST_THRESHOLD_GEV).any():
        shallow_m = depth_m_SD[np.argmin(threshold_gev_S), 0]
        raise BadInputError(f"depth = {shallow_m:.0f} m: real showers are simulated from about 1,280 m on")
    ground = muons_at_ground(energy_gev_S, mass_S, cos_S, threshold_gev_S, library, rng, field=field)
    shower_P, energy_gev_P = ground.shower, np.maximum(ground.energy_gev, 0.0)
    track_4P = np.stack([ground.x_m, ground.y_m, ground.slope_x, ground.slope_y])
    rows, columns = [], []
    before_m_S = before_mwe_S = np.zeros(len(cos_S))
    for depth in range(num_depths):
        alive_P = (energy_gev_P > 0) & reached_SD[shower_P, depth]
        shower_P, energy_gev_P, track_4P = shower_P[alive_P], energy_gev_P[alive_P], track_4P[:, alive_P]
        way_m_S, way_mwe_S = slant_m_SD[:, depth] - before_m_S, slant_mwe_SD[:, depth] - before_mwe_S
        metres_per_mwe_S = way_m_S / np.maximum(way_mwe_S, 1e-9)
        energy_gev_P = _ice().propagate(energy_gev_P, track_4P, way_mwe_S[shower_P], metres_per_mwe_S[shower_P], rng)
        alive_P = energy_gev_P > 0
        rows.append(shower_P[alive_P] * num_depths + depth)
        columns.append(np.stack([energy_gev_P, *track_4P[:2]], 1)[alive_P].astype(np.float32))
        before_m_S, before_mwe_S = slant_m_SD[:, depth], slant_mwe_SD[:, depth]
    row_P = np.concatenate(rows)
    counts = np.bincount(row_P, minlength=depth_m_SD.size).reshape(depth_m_SD.shape)
    return counts, np.concatenate(columns)[np.argsort(row_P, kind="stable")]


def require_known(energy_gev: float, cos_zenith: float) -> None:
    """Raise BadInputError for a primary that the simulation doesn't reach."""
    if energy_gev > MOST_ENERGY_GEV or cos_zenith < LEAST_COS_ZENITH:
        most_deg = np.rad2deg(np.arccos(LEAST_COS_ZENITH))
        raise BadInputError(f"real showers end at {MOST_ENERGY_GEV:g} GeV, and at {most_deg:.0f}° of zenith angle")
