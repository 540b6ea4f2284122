"""Multiplicity: number of muons of a primary at depth, and their surface energies.

Shapes: E events, P muons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workloads.muons.geometry import slant_depth_m
from workloads.muons.simulator.config import ElbertFit, SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries
from workloads.muons.simulator.propagation import (
    Float32,
    Float64,
    cos_local_zenith,
    surface_energy_gev,
    vertical_depth_mwe,
)


@dataclass(frozen=True)
class Expectation:
    """Expected values of each event, from the formulas."""

    slant_m_E: Float64
    slant_mwe_E: Float64
    vertical_mwe_E: Float64
    cos_local_E: Float64
    threshold_gev_E: Float64
    """Threshold energy at the surface for a muon to reach the detector, GeV."""
    mean_E: Float64
    """Mean number of muons at depth."""
    shape_E: Float64
    """Shape k of the negative binomial: var N = mean + mean²/k."""


def expect(primaries: SimulatedPrimaries, config: SimulatorConfig) -> Expectation:
    """Geometry, threshold and mean multiplicity of each event."""
    slant_m_E = slant_depth_m(primaries.cos_zenith_E, primaries.depth_m_E, config.earth_radius_m)
    vertical_mwe_E = vertical_depth_mwe(primaries.depth_m_E, config)
    slant_mwe_E = slant_m_E * vertical_mwe_E / primaries.depth_m_E
    cos_local_E = cos_local_zenith(primaries.cos_zenith_E)
    threshold_gev_E = surface_energy_gev(config.energy_cut_gev, slant_mwe_E, config)
    mean_E = mean_multiplicity(
        threshold_gev_E, primaries.energy_gev_E, primaries.mass_E, cos_local_E, config.elbert_fit
    )
    shape_E = config.nb_shape_per_nucleon * primaries.mass_E
    return Expectation(slant_m_E, slant_mwe_E, vertical_mwe_E, cos_local_E, threshold_gev_E, mean_E, shape_E)


def mean_multiplicity(
    threshold_gev: Float64, energy_gev: Float64, mass: Float64, cos_local: Float64, fit: ElbertFit
) -> Float64:
    """Mean number of muons above ``threshold_gev`` at the surface; 0 above the energy of one nucleon.

    Elbert's formula for A independent nucleons of E_0 / A each (superposition).
    """
    x = np.minimum(mass * threshold_gev / energy_gev, 1.0)
    return mass * fit.scale_gev / (threshold_gev * cos_local) * x**-fit.slope * (1.0 - x**fit.edge) ** fit.power


def draw_counts(
    mean_E: Float64, shape_E: Float64, mass_E: Float64, config: SimulatorConfig, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Number of muons of each event. (E,).

    ``nb``: each nucleon's cascade is negative binomial, so their sum is too: Poisson of a Gamma.
    """
    if config.fluctuation == "nb":
        mean_E = rng.standard_gamma(shape_E) * (mean_E / shape_E)
    elif config.fluctuation == "lognormal":
        sigma_E = config.lognormal_sigma / np.sqrt(mass_E)
        mean_E = mean_E * np.exp(sigma_E * rng.standard_normal(len(mean_E)) - 0.5 * sigma_E**2)
    return rng.poisson(mean_E).astype(np.int64, copy=False)


class SurfaceSpectrum:
    """Inverse of the fraction of muons above an energy, S(x) ~ x^-(1 + slope) (1 - x^edge)^power, x = A E / E_0.

    ln S falls monotonically with x. It is tabulated once at equal steps of ln S, so that a look-up is an index
    and a linear interpolation: no search, in float32. Error in ln x: < 1e-5.
    """

    STEPS_PER_UNIT = 256
    LOWEST_LOG_X = -30.0
    CLOSEST_TO_ONE = 1e-7

    def __init__(self, fit: ElbertFit) -> None:
        self._fit = fit
        near_one = np.log1p(-np.geomspace(0.5, self.CLOSEST_TO_ONE, 60_000))
        log_x = np.concatenate([np.linspace(self.LOWEST_LOG_X, np.log(0.5), 60_000, endpoint=False), near_one])
        log_share = self.log_share(log_x)
        self._offset = np.float32(log_share[-1])
        num_steps = int((log_share[0] - log_share[-1]) * self.STEPS_PER_UNIT)
        grid = self._offset + np.arange(num_steps + 1) / self.STEPS_PER_UNIT
        nodes = np.interp(grid, log_share[::-1], log_x[::-1])
        self._value = nodes[:-1].astype(np.float32)
        self._slope = np.diff(nodes).astype(np.float32)

    def log_share(self, log_x: Float64) -> Float64:
        """Value of ln S up to a constant, for ln x < 0."""
        bracket = -np.expm1(self._fit.edge * log_x)
        return np.asarray(-(1.0 + self._fit.slope) * log_x + self._fit.power * np.log(bracket), np.float64)

    def log_x(self, log_share_P: Float32) -> Float32:
        """Value of ln x for ``log_share_P``. Overwrites its argument. (P,) -> (P,)."""
        step_P = log_share_P
        step_P -= self._offset
        step_P *= np.float32(self.STEPS_PER_UNIT)
        np.clip(step_P, 0.0, len(self._value) - 1, out=step_P)
        index_P = step_P.astype(np.intp)
        step_P -= index_P.astype(np.float32)
        step_P *= self._slope.take(index_P)
        step_P += self._value.take(index_P)
        return step_P


@lru_cache(maxsize=4)
def surface_spectrum(fit: ElbertFit) -> SurfaceSpectrum:
    """Table of a fit, built once a process (3 ms)."""
    return SurfaceSpectrum(fit)
