"""Likelihood of muons in the simulator itself, given the primary and their number. Pure.

An event's muons share the depth of its first interaction, which no condition says. So their likelihood is an integral
over it, and that of each muon's radius one over the depth where the muon began: both by quadrature.

Shapes: E events, P muons, F first interactions, D further depths.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, roots_genlaguerre

from benchmarks.physics.spec import Source
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.simulator.config import (
    ELBERT_POWER,
    ELBERT_SLOPE,
    INTERACTION_LENGTH_GCM2,
    LOSS_B_PER_MWE,
    PRODUCTION_DEPTH_GCM2,
    PT_MEAN_GEV,
    SCALE_HEIGHT_M,
    SURFACE_DEPTH_GCM2,
    SimulatorConfig,
)
from workloads.muons.simulator.muons import Expectation, SimulatedPrimaries, expect, surface_spectrum

_FIRST, _FURTHER = 160, 16
"""Nodes of both integrals. Twice as many change the mean by less than 1e-5 nats a muon."""
_LOG_FIRST_RANGE = (-12.0, 3.3)
"""Range of ln(depth of the first interaction / its mean)."""
_LOWEST_PRODUCTION = 0.98
"""Largest fraction of the atmosphere above a muon's production, as in the simulator."""
_LEAST_RADIUS_M = 1e-9
_MUONS_AT_A_TIME = 1024


def muon_nats(
    primary_E4: npt.ArrayLike, bundles: BundleArrays, source: Source, first: int = _FIRST, further: int = _FURTHER
) -> Float64:
    """-ln p(muons | primary, N) of independent rows, a density in lg(E / GeV) and in x and y in metres. (E,).

    Radii must be those by transverse momentum , and azimuths flat, as they are in the simulator.
    """
    config = source.config
    primaries = SimulatedPrimaries.from_columns(primary_E4)
    truth = expect(primaries, config)
    event_P, radius_m_P = bundles.event_P, np.maximum(bundles.radius_m_P, _LEAST_RADIUS_M)
    surface_gev_P, nats_P = _energies(primaries, truth, bundles, config)
    lines = _Lines(truth, first, further)
    # A muon's radius is pT / E_surface · L, with pT from Gamma(2): its density, with u = 2 r E_surface / <pT>,
    # is (u / L)² exp(-u / L) / r.
    reach_P = 2.0 * radius_m_P * surface_gev_P / PT_MEAN_GEV
    log_p_EF = np.zeros((len(bundles), first))
    for start in range(0, len(event_P), _MUONS_AT_A_TIME):
        part = slice(start, start + _MUONS_AT_A_TIME)
        events, place_P = np.unique(event_P[part], return_inverse=True)
        log_p_PF = lines.log_density(reach_P[part], events, place_P)
        begin = np.concatenate([[0], np.flatnonzero(np.diff(place_P)) + 1])
        log_p_EF[events] += np.add.reduceat(log_p_PF, begin)
    # From GeV to lg E, and from the radius to x and y: 2 pi r metres of circle.
    nats_P += 2.0 * np.log(radius_m_P) + np.log(2.0 * np.pi) - np.log(bundles.energy_gev_P * np.log(10.0))
    nats_E: Float64 = np.bincount(event_P, nats_P, len(bundles)) - logsumexp(log_p_EF + lines.log_weight_F, axis=1)
    return nats_E


def _energies(
    primaries: SimulatedPrimaries, truth: Expectation, bundles: BundleArrays, config: SimulatorConfig
) -> tuple[Float64, Float64]:
    """Energy of each muon at the surface, and -ln of its density at depth, per GeV. (P,), (P,)."""
    event_P = bundles.event_P
    nucleon_gev_P = (primaries.energy_gev_E / primaries.mass_E)[event_P]
    threshold_gev_P = truth.threshold_gev_E[event_P]
    log_transmission_P = (-LOSS_B_PER_MWE * truth.slant_mwe_E)[event_P]
    above_cut_P = np.maximum(bundles.energy_gev_P - config.energy_cut_gev, 0.0)
    surface_gev_P = threshold_gev_P + above_cut_P * np.exp(-log_transmission_P)
    spectrum = surface_spectrum()
    log_x_P, log_least_P = np.log(surface_gev_P / nucleon_gev_P), np.log(threshold_gev_P / nucleon_gev_P)
    # ln(-dS/dE) of S(x) ~ x^-(1 + slope) (1 - x)^power, x = E_surface / E_nucleon.
    slope_P = 1.0 + ELBERT_SLOPE + ELBERT_POWER * np.exp(log_x_P) / -np.expm1(log_x_P)
    log_share_P = spectrum.log_share(log_x_P) - spectrum.log_share(log_least_P)
    return surface_gev_P, -(log_share_P + np.log(slope_P) - np.log(surface_gev_P) - log_transmission_P)


class _Lines:
    """Metres of track from a muon's production to the detector, at the nodes of both integrals."""

    def __init__(self, truth: Expectation, first: int, further: int) -> None:
        self._truth = truth
        # First: trapezoids in ln of the depth, at whose ends the density is 0. Further: Gauss-Laguerre for a Gamma(2).
        log_first_F = np.linspace(*_LOG_FIRST_RANGE, first)
        log_share_F = log_first_F - np.exp(log_first_F)
        self.log_weight_F = log_share_F - logsumexp(log_share_F)
        self._deviation_F1 = np.exp(log_first_F)[:, None] - 1.0
        nodes_D, weights_D = roots_genlaguerre(further, 1.0)
        self._further_gcm2_D = 0.5 * PRODUCTION_DEPTH_GCM2 * nodes_D
        self._weights_D = (weights_D / weights_D.sum()).astype(np.float32)

    def log_density(self, reach_P: Float64, events: npt.NDArray[np.int64], place_P: npt.NDArray[np.int64]) -> Float64:
        """ln of the integral over further depths of (u / L)² exp(-u / L), for the u of each muon. (P, F)."""
        cos_local_E = self._truth.cos_local_E[events]
        log_surface_E = np.log(SURFACE_DEPTH_GCM2 / cos_local_E)
        shared_E11 = self._truth.shared_E[events][:, None, None]
        first_gcm2_EF1 = INTERACTION_LENGTH_GCM2 * (1.0 + shared_E11 * self._deviation_F1)
        height_EFD = log_surface_E[:, None, None] - np.log(first_gcm2_EF1 + self._further_gcm2_D)
        np.maximum(height_EFD, -np.log(_LOWEST_PRODUCTION), out=height_EFD)
        length_EFD = height_EFD * (SCALE_HEIGHT_M / cos_local_E)[:, None, None]
        length_EFD += self._truth.slant_m_E[events][:, None, None]
        inverse_EFD = (1.0 / length_EFD).astype(np.float32)
        # float32 has no room for exp(-100): the smallest of the exponents is taken out.
        least_EF = inverse_EFD.min(2)
        shifted_EFD = inverse_EFD - least_EF[:, :, None]
        factor_EFD = inverse_EFD**2 * self._weights_D
        reach = reach_P.astype(np.float32)
        parts_PFD = np.exp(-reach[:, None, None] * shifted_EFD[place_P])
        sum_PF = np.einsum("pfd,pfd->pf", parts_PFD, factor_EFD[place_P]).astype(np.float64)
        log_p_PF: Float64 = np.log(sum_PF) + 2.0 * np.log(reach_P)[:, None] - reach_P[:, None] * least_EF[place_P]
        return log_p_PF
