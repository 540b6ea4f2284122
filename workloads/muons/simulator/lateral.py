"""Lateral distribution of muons at depth: two models, one interface.

Shapes: E events, P muons of a chunk.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.simulator.chunks import Chunk, Int64
from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries
from workloads.muons.simulator.multiplicity import Expectation
from workloads.muons.simulator.propagation import Float32

_LOWEST_PRODUCTION = 0.98
"""Largest fraction of the atmosphere above a muon's production, so that its height stays positive."""


def gamma2(num: int, mean: float, rng: np.random.Generator) -> Float32:
    """Random numbers from Gamma of shape 2 with mean ``mean``, as sums of two exponentials: twice as fast. (P,)."""
    total = rng.standard_exponential(num, dtype=np.float32)
    total += rng.standard_exponential(num, dtype=np.float32)
    total *= np.float32(0.5 * mean)
    return total


class PtLateral:
    """Radius r = pT / E_surface · (production height + slant depth): a straight line from the decay of the parent.

    The depth of the first interaction is one draw an event, common to its muons: bundles differ in width,
    a latent variable that a generator of muons has to learn. No magnetic field, no scattering in the ice.
    """

    def __init__(self, truth: Expectation, config: SimulatorConfig, rng: np.random.Generator) -> None:
        self._config = config
        first_gcm2_E = rng.standard_exponential(len(truth.mean_E)) * config.interaction_length_gcm2
        self._first_gcm2_E = first_gcm2_E.astype(np.float32)
        self._scale_m_E = (config.scale_height_m / truth.cos_local_E).astype(np.float32)
        self._log_surface_E = np.log(config.surface_depth_gcm2 / truth.cos_local_E).astype(np.float32)

    def lines(self, chunk: Chunk, surface_gev_P: Float32, rng: np.random.Generator) -> tuple[Float32, Float32]:
        """Slope to the axis, and metres along the track from production to the surface. (P,), (P,)."""
        slope_P = gamma2(len(chunk), self._config.pt_mean_gev, rng)
        slope_P /= surface_gev_P
        depth_gcm2_P = gamma2(len(chunk), self._config.production_depth_gcm2, rng)
        depth_gcm2_P += chunk.spread(self._first_gcm2_E)
        height_m_P = chunk.spread(self._log_surface_E)
        height_m_P -= np.log(depth_gcm2_P, out=depth_gcm2_P)
        np.maximum(height_m_P, np.float32(-np.log(_LOWEST_PRODUCTION)), out=height_m_P)
        height_m_P *= chunk.spread(self._scale_m_E)
        return slope_P, height_m_P

    def radius_m(self, chunk: Chunk, surface_gev_P: Float32, slant_m_P: Float32, rng: np.random.Generator) -> Float32:
        """Distance to the axis at depth, metres. (P,)."""
        slope_P, length_m_P = self.lines(chunk, surface_gev_P, rng)
        length_m_P += slant_m_P
        length_m_P *= slope_P
        return length_m_P


class MupageLateral:
    """Radius from dN/dR ~ R / (R + R0)^alpha: Becherini et al., Astropart. Phys. 25 (2006) 1, hep-ph/0507228.

    Independent of the muon's energy. Fitted for 1.5 to 5 km.w.e.: shallower and deeper rows use the nearest
    limit. R / R0 is Gamma(2) / Gamma(alpha - 2), which is exact and needs no rejection loop.
    """

    DEPTH_KM_MWE = (1.5, 5.0)
    LARGEST_MULTIPLICITY = 4

    def __init__(self, primaries: SimulatedPrimaries, truth: Expectation, counts_E: Int64) -> None:
        depth_E = np.clip(truth.vertical_mwe_E / 1000.0, *self.DEPTH_KM_MWE)
        num_E = np.clip(counts_E, 1, self.LARGEST_MULTIPLICITY)
        zenith_rad_E = np.arccos(primaries.cos_zenith_E)
        mean_m_E = (-1.786 * num_E + 28.26) * depth_E**-1.06 / (np.exp((zenith_rad_E - 1.3) * 10.4) + 1.0)
        alpha_E = (-0.448 * num_E + 4.969) * np.exp(depth_E * (0.0194 * num_E + 0.276))
        self._scale_m_E = (0.5 * mean_m_E * (alpha_E - 3.0)).astype(np.float32)
        self._shape_E = (alpha_E - 2.0).astype(np.float32)

    def radius_m(self, chunk: Chunk, surface_gev_P: Float32, slant_m_P: Float32, rng: np.random.Generator) -> Float32:
        """Distance to the axis at depth, metres; independent of energy and slant depth. (P,)."""
        radius_m_P = gamma2(len(chunk), 2.0, rng)
        radius_m_P /= rng.standard_gamma(chunk.spread(self._shape_E), dtype=np.float32)
        radius_m_P *= chunk.spread(self._scale_m_E)
        return radius_m_P


def lateral_of(
    primaries: SimulatedPrimaries,
    truth: Expectation,
    counts_E: Int64,
    config: SimulatorConfig,
    rng: np.random.Generator,
) -> PtLateral | MupageLateral:
    """Lateral model named by ``config.lateral``."""
    if config.lateral == "mupage":
        return MupageLateral(primaries, truth, counts_E)
    return PtLateral(truth, config, rng)
