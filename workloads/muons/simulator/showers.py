"""Shower mode: one shower recorded at several depths, one row each, as in the production files.

Shapes: S showers, D depths, E = S·D rows (a shower's rows together, shallowest first), M muons of the showers
at their shallowest depth, P muons of the rows (a muon that lives on counts again at each depth).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.muons.simulator.chunks import Int64, chunks
from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries
from workloads.muons.simulator.lateral import MupageLateral, PtLateral
from workloads.muons.simulator.multiplicity import draw_counts, expect
from workloads.muons.simulator.muons import EnergyLoss, SimulatedBundles, SurfaceEnergies, draw_direction
from workloads.muons.simulator.propagation import Float32, Float64


def shower_depths_m(num_depths: int, config: SimulatorConfig) -> Float64:
    """Equally spaced depths of a shower's rows, vertical metres, shallowest first. (D,)."""
    return np.linspace(config.depth_min_m, config.depth_max_m, num_depths)


def simulate_showers(
    showers: SimulatedPrimaries, depths_m: Float64, config: SimulatorConfig, rng: np.random.Generator
) -> SimulatedBundles:
    """Rows of each shower at each depth; ``showers.depth_m_S`` is not used.

    The shower is drawn once, at the shallowest depth; each deeper row holds its muons that are still above the cut.
    Energies follow Elbert's survival, so the mean at every depth is right, and N never rises with depth.
    A muon keeps its line (``lateral="pt"``); MUPAGE's fit has no lines: there each row draws its own radii.
    """
    num_showers, num_depths = len(showers), len(depths_m)
    top = replace(showers, depth_m_E=np.full(num_showers, depths_m[0]))
    truth_S = expect(top, config)
    counts_S = draw_counts(truth_S.mean_E, truth_S.shape_E, top.mass_E, config, rng)
    rows = SimulatedPrimaries(
        energy_gev_E=np.repeat(showers.energy_gev_E, num_depths),
        mass_E=np.repeat(showers.mass_E, num_depths),
        cos_zenith_E=np.repeat(showers.cos_zenith_E, num_depths),
        depth_m_E=np.tile(depths_m, num_showers),
    )
    truth_E = expect(rows, config)
    loss = EnergyLoss(truth_E, config)

    surface = SurfaceEnergies(top, truth_S, config)
    lines = PtLateral(truth_S, config, rng)
    num_muons = int(counts_S.sum())
    surface_gev_M, slope_M, height_m_M = (np.empty(num_muons, np.float32) for _ in range(3))
    for chunk in chunks(counts_S):
        here = slice(chunk.start, chunk.stop)
        surface_gev_M[here] = surface.draw(chunk, rng)
        slope_M[here], height_m_M[here] = lines.lines(chunk, surface_gev_M[here], rng)
    cos_M, sin_M = draw_direction(num_muons, rng)

    counts_E, muon_P = _survivors(surface_gev_M, counts_S, loss.threshold_gev_E.reshape(num_showers, num_depths))
    mupage = MupageLateral(rows, truth_E, counts_E) if config.lateral == "mupage" else None
    slant_m_E = truth_E.slant_m_E.astype(np.float32)
    muons_P3 = np.empty((len(muon_P), 3), np.float32)
    for chunk in chunks(counts_E):
        source_P = muon_P[chunk.start : chunk.stop]
        surface_gev_P = surface_gev_M[source_P]
        slant_m_P = chunk.spread(slant_m_E)
        if mupage is not None:
            radius_m_P = mupage.radius_m(chunk, surface_gev_P, slant_m_P, rng)
        else:
            radius_m_P = slope_M[source_P] * (height_m_M[source_P] + slant_m_P)
        out_P3 = muons_P3[chunk.start : chunk.stop]
        out_P3[:, 0] = loss.energy_gev(chunk, surface_gev_P)
        out_P3[:, 1] = radius_m_P * cos_M[source_P]
        out_P3[:, 2] = radius_m_P * sin_M[source_P]
    return SimulatedBundles(rows.columns(config), counts_E, muons_P3)


def _survivors(surface_gev_M: Float32, counts_S: Int64, threshold_gev_SD: Float32) -> tuple[Int64, Int64]:
    """Number of muons of each row, and the index of each muon within its shower. (S·D,), (P,)."""
    num_showers, num_depths = threshold_gev_SD.shape
    shower_M = np.repeat(np.arange(num_showers), counts_S)
    counts_SD = np.empty((num_showers, num_depths), np.int64)
    alive_of_depth = []
    alive = np.arange(len(surface_gev_M))
    for depth in range(num_depths):
        # Thresholds grow with depth, so only those still alive need a look.
        alive = alive[surface_gev_M[alive] >= threshold_gev_SD[shower_M[alive], depth]]
        alive_of_depth.append(alive)
        counts_SD[:, depth] = np.bincount(shower_M[alive], minlength=num_showers)
    counts_E = counts_SD.reshape(-1)
    first_of_row_SD = (np.cumsum(counts_E) - counts_E).reshape(num_showers, num_depths)
    muon_P = np.empty(int(counts_E.sum()), np.int64)
    for depth, alive in enumerate(alive_of_depth):
        count_S = counts_SD[:, depth]
        # Position in the row = rank among the shower's survivors at this depth.
        shift_S = first_of_row_SD[:, depth] - (np.cumsum(count_S) - count_S)
        muon_P[np.arange(len(alive)) + np.repeat(shift_S, count_S)] = alive
    return counts_E, muon_P
