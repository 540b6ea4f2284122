"""Muon bundles at depth with known truth: functions of primaries, configuration and random generator only.

A toy from published formulas; docs/explanation/simulator.md describes its differences from a real simulation.
Shapes: E events (rows), P muons. Event arrays are float64. Muon arrays are float32: its rounding (1e-6) is
far below any spread drawn here, and exp, log, cos, sin take a seventh of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.muons.simulator.chunks import Chunk, Int64, chunks
from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries
from workloads.muons.simulator.lateral import lateral_of
from workloads.muons.simulator.multiplicity import Expectation, draw_counts, expect, surface_spectrum
from workloads.muons.simulator.propagation import Float32


@dataclass(frozen=True)
class SimulatedBundles:
    """Simulated rows as in the file."""

    primary_E4: Float32
    """energy_gev, zenith_rad, mass_a, depth_m."""
    counts_E: Int64
    """Number of muons of each row; 0 if none of its shower reaches the depth."""
    muons_P3: Float32
    """energy_gev, x_m, y_m, row after row."""

    def __len__(self) -> int:
        return len(self.counts_E)


def simulate(primaries: SimulatedPrimaries, config: SimulatorConfig, rng: np.random.Generator) -> SimulatedBundles:
    """Bundles, one for each primary, independent of each other, at the primary's depth."""
    truth = expect(primaries, config)
    counts_E = draw_counts(truth.mean_E, truth.shape_E, primaries.mass_E, config, rng)
    surface = SurfaceEnergies(primaries, truth, config)
    loss = EnergyLoss(truth, config)
    lateral = lateral_of(primaries, truth, counts_E, config, rng)
    slant_m_E = truth.slant_m_E.astype(np.float32)
    muons_P3 = np.empty((int(counts_E.sum()), 3), np.float32)
    for chunk in chunks(counts_E):
        surface_gev_P = surface.draw(chunk, rng)
        radius_m_P = lateral.radius_m(chunk, surface_gev_P, chunk.spread(slant_m_E), rng)
        cos_P, sin_P = draw_direction(len(chunk), rng)
        out_P3 = muons_P3[chunk.start : chunk.stop]
        np.multiply(radius_m_P, cos_P, out=out_P3[:, 1])
        np.multiply(radius_m_P, sin_P, out=out_P3[:, 2])
        out_P3[:, 0] = loss.energy_gev(chunk, surface_gev_P)
    return SimulatedBundles(primaries.columns(config), counts_E, muons_P3)


class SurfaceEnergies:
    """Energies at the surface of the muons that reach the detector, drawn from Elbert's spectrum."""

    def __init__(self, primaries: SimulatedPrimaries, truth: Expectation, config: SimulatorConfig) -> None:
        self._spectrum = surface_spectrum(config.elbert_fit)
        nucleon_gev_E = primaries.energy_gev_E / primaries.mass_E
        # An event with nucleons below threshold has no muons: any finite value will do.
        log_x_E = np.minimum(np.log(truth.threshold_gev_E / nucleon_gev_E), -self._spectrum.CLOSEST_TO_ONE)
        self._log_share_E = self._spectrum.log_share(log_x_E).astype(np.float32)
        self._nucleon_gev_E = nucleon_gev_E.astype(np.float32)
        self._threshold_gev_E = truth.threshold_gev_E.astype(np.float32)

    def draw(self, chunk: Chunk, rng: np.random.Generator) -> Float32:
        """Energy at the surface, GeV, at least the event's threshold. (P,)."""
        # S(E) = u · S(threshold) with u uniform: -ln u is exponential.
        log_share_P = chunk.spread(self._log_share_E)
        log_share_P -= rng.standard_exponential(len(chunk), dtype=np.float32)
        energy_gev_P = self._spectrum.log_x(log_share_P)
        np.exp(energy_gev_P, out=energy_gev_P)
        energy_gev_P *= chunk.spread(self._nucleon_gev_E)
        return np.maximum(energy_gev_P, chunk.spread(self._threshold_gev_E), out=energy_gev_P)


class EnergyLoss:
    """Conversion of energies at the surface to energies at depth."""

    def __init__(self, truth: Expectation, config: SimulatorConfig) -> None:
        self._cut_gev = np.float32(config.energy_cut_gev)
        self.threshold_gev_E = truth.threshold_gev_E.astype(np.float32)
        self._transmission_E = np.exp(-config.loss_b_per_mwe * truth.slant_mwe_E).astype(np.float32)

    def energy_gev(self, chunk: Chunk, surface_gev_P: Float32) -> Float32:
        """Energy at depth, GeV, of muons at or above threshold. Overwrites its argument. (P,) -> (P,).

        Inverse of surface_energy_gev(), relative to the threshold: no difference of large numbers, never below the cut.
        """
        energy_gev_P = surface_gev_P
        energy_gev_P -= chunk.spread(self.threshold_gev_E)
        energy_gev_P *= chunk.spread(self._transmission_E)
        energy_gev_P += self._cut_gev
        return energy_gev_P


def draw_direction(num: int, rng: np.random.Generator) -> tuple[Float32, Float32]:
    """Cosine and sine of a uniform azimuth: the bundle is symmetric around its axis. (P,), (P,)."""
    angle_rad_P = rng.random(num, dtype=np.float32)
    angle_rad_P *= np.float32(2.0 * np.pi)
    return np.cos(angle_rad_P), np.sin(angle_rad_P, out=angle_rad_P)
