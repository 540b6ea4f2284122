"""Muon bundles at depth with known truth: functions of primaries, configuration and random generator only.

First what the formulas expect of each primary: flux, way through air and ice, mean number of muons at depth. Then the
muons. A toy from published formulas; docs/explanation/physics.md describes its differences from a real simulation.
Energy loss is continuous only: real losses are stochastic and widen the energies at depth, most for muons above a TeV.

Shapes: E events (rows), G groups of nuclei, P muons (of a chunk); of showers: S showers, D depths, E = S·D rows (a
shower's rows together, shallowest first), M muons of the showers at their shallowest depth, P muons of the rows (a muon
that lives on counts again at each depth). Event arrays are float64. Muon arrays are float32: its rounding (1e-6) is far
below any spread drawn here, and exp, log, cos, sin take a seventh of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from workloads.muons.columns import slant_depth_m
from workloads.muons.showers.bundles import bundles_of_showers, vertical_depth_mwe
from workloads.muons.showers.interactions import LibraryName, library_of
from workloads.muons.simulator.config import (
    ELBERT_POWER,
    ELBERT_SCALE_GEV,
    ELBERT_SLOPE,
    GROUP_CHARGE,
    GROUP_MASS,
    INTERACTION_LENGTH_GCM2,
    LOSS_A_GEV_PER_MWE,
    LOSS_B_PER_MWE,
    MASS_FRACTIONS,
    NB_ENERGY_POWER,
    NB_MASS_POWER,
    NB_SHAPE,
    PRODUCTION_DEPTH_GCM2,
    PT_MEAN_GEV,
    SCALE_HEIGHT_M,
    SHARED_PART,
    SHARED_POWER,
    SURFACE_DEPTH_GCM2,
    SimulatorConfig,
)

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

# Chirkin, hep-ph/0407078: fit of the cosine of the zenith angle at the production of the muons.
_LOCAL_ANGLE = (0.102573, -0.068287, 0.958633, 0.0407253, 0.817285)


def cos_local_zenith(cos_zenith: Float64) -> Float64:
    """Cosine of the zenith angle at production height, on a round Earth (Chirkin, hep-ph/0407078)."""
    p0, p1, p2, p3, p4 = _LOCAL_ANGLE
    squared = cos_zenith**2 + p0**2 + p1 * cos_zenith**p2 + p3 * cos_zenith**p4
    return np.sqrt(squared / (1.0 + p0**2 + p1 + p3))


def surface_energy_gev(energy_gev: Float64 | float, slant_mwe: Float64) -> Float64:
    """Energy at the surface of a muon with ``energy_gev`` after ``slant_mwe`` (dE/dX = -(a + bE))."""
    critical_gev = LOSS_A_GEV_PER_MWE / LOSS_B_PER_MWE
    return (energy_gev + critical_gev) * np.exp(LOSS_B_PER_MWE * slant_mwe) - critical_gev


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
    """Depth in vertical metres."""

    def __len__(self) -> int:
        return len(self.energy_gev_E)

    def columns(self) -> Float32:
        """Values of the file's ``primary`` column: energy_gev, zenith_rad, mass_a, depth_m. (E, 4)."""
        columns = [self.energy_gev_E, np.arccos(self.cos_zenith_E), self.mass_E, self.depth_m_E]
        return np.stack(columns, 1, dtype=np.float32, casting="same_kind")

    @classmethod
    def from_columns(cls, columns_E4: npt.ArrayLike) -> SimulatedPrimaries:
        """Primaries from a file's ``primary`` column, for a second set of muons."""
        energy_gev_E, zenith_rad_E, mass_E, depth_m_E = np.asarray(columns_E4, np.float64).T
        return cls(energy_gev_E.copy(), mass_E.copy(), np.cos(zenith_rad_E), depth_m_E.copy())


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
        group_E = _choose(MASS_FRACTIONS, num_events, rng)
        energy_gev_E = _sample_powerlaw(num_events, config, rng)
    # Flux through a horizontal surface ~ sin·cos dθ, so cos² is uniform.
    cos2_min = np.cos(np.deg2rad(config.zenith_max_deg)) ** 2
    cos_zenith_E = np.sqrt(cos2_min + (1.0 - cos2_min) * rng.random(num_events))
    depth_m_E = depth_grid_m(config)[rng.integers(0, config.depth_steps, num_events)]
    return SimulatedPrimaries(energy_gev_E, np.asarray(GROUP_MASS)[group_E], cos_zenith_E, depth_m_E)


def _choose(shares_G: Sequence[float] | Float64, num_events: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Index of a group for each event, in proportion to the shares."""
    cumulative_G = np.cumsum(shares_G)
    return np.searchsorted(cumulative_G[:-1] / cumulative_G[-1], rng.random(num_events), side="right")


def _sample_powerlaw(num_events: int, config: SimulatorConfig, rng: np.random.Generator) -> Float64:
    """Energies from E^-gamma between the two limits, by its closed-form inverse."""
    low, high, share_E = config.energy_min_gev, config.energy_max_gev, rng.random(num_events)
    power = 1.0 - config.gamma
    if abs(power) < 1e-9:
        energy_gev_E: Float64 = low * (high / low) ** share_E
    else:
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


@dataclass(frozen=True)
class Expectation:
    """Expected values of each event, from the formulas."""

    slant_m_E: Float64
    slant_mwe_E: Float64
    cos_local_E: Float64
    threshold_gev_E: Float64
    """Threshold energy at the surface for a muon to reach the detector, GeV."""
    mean_E: Float64
    """Mean number of muons at depth."""
    shape_E: Float64
    """Shape k of the negative binomial: var N = mean + mean²/k."""
    shared_E: Float64
    """Part of the fluctuation of the first interaction's depth that all muons have, 0 to 1."""


def expect(primaries: SimulatedPrimaries, config: SimulatorConfig) -> Expectation:
    """Geometry, threshold and mean multiplicity of each event."""
    slant_m_E = slant_depth_m(primaries.cos_zenith_E, primaries.depth_m_E)
    slant_mwe_E = slant_m_E * vertical_depth_mwe(primaries.depth_m_E) / primaries.depth_m_E
    cos_local_E = cos_local_zenith(primaries.cos_zenith_E)
    threshold_gev_E = surface_energy_gev(config.energy_cut_gev, slant_mwe_E)
    mean_E = mean_multiplicity(threshold_gev_E, primaries.energy_gev_E, primaries.mass_E, cos_local_E)
    energy_pev_E = primaries.energy_gev_E / 1e6
    shape_E = NB_SHAPE * primaries.mass_E**NB_MASS_POWER * energy_pev_E**NB_ENERGY_POWER
    shared_E = np.minimum(SHARED_PART * energy_pev_E**SHARED_POWER, 1.0)
    return Expectation(slant_m_E, slant_mwe_E, cos_local_E, threshold_gev_E, mean_E, shape_E, shared_E)


def mean_multiplicity(threshold_gev: Float64, energy_gev: Float64, mass: Float64, cos_local: Float64) -> Float64:
    """Mean number of muons above ``threshold_gev`` at the surface; 0 above the energy of one nucleon.

    Elbert's formula for A independent nucleons of E_0 / A each (superposition).
    """
    x = np.minimum(mass * threshold_gev / energy_gev, 1.0)
    return mass * ELBERT_SCALE_GEV / (threshold_gev * cos_local) * x**-ELBERT_SLOPE * (1.0 - x) ** ELBERT_POWER


def draw_counts(mean_E: Float64, shape_E: Float64, rng: np.random.Generator) -> Int64:
    """Number of muons of each event, from a negative binomial: Poisson of a Gamma. (E,)."""
    rate_E = rng.standard_gamma(shape_E) * (mean_E / shape_E)
    return rng.poisson(rate_E).astype(np.int64, copy=False)


class SurfaceSpectrum:
    """Inverse of the fraction of muons above an energy, S(x) ~ x^-(1 + slope) (1 - x)^power, x = A E / E_0.

    ln S falls monotonically with x. It is tabulated once at equal steps of ln S, so that a look-up is an index
    and a linear interpolation: no search, in float32. Error in ln x: < 1e-5.
    """

    STEPS_PER_UNIT = 256
    LOWEST_LOG_X = -30.0
    CLOSEST_TO_ONE = 1e-7

    def __init__(self) -> None:
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
        return np.asarray(-(1.0 + ELBERT_SLOPE) * log_x + ELBERT_POWER * np.log(-np.expm1(log_x)), np.float64)

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


surface_spectrum = cache(SurfaceSpectrum)
"""Built once in a process: 3 ms."""


CHUNK_MUONS = 1 << 15
"""Muons processed at once; 4,096 to 262,144 are equally fast. It bounds the temporaries, because a chunk may
end inside an event: a row of a million muons needs no memory besides its own result."""


@dataclass(frozen=True)
class Chunk:
    """Muons ``start`` to ``stop`` of the flat array, and their number for each event."""

    start: int
    stop: int
    first_event: int
    counts_E: Int64

    def __len__(self) -> int:
        return self.stop - self.start

    def spread(self, values_E: Float32) -> Float32:
        """Values of the events, repeated for each of their muons in this chunk. (all events,) -> (P,)."""
        return np.repeat(values_E[self.first_event : self.first_event + len(self.counts_E)], self.counts_E)


def chunks(counts_E: Int64, max_muons: int = CHUNK_MUONS) -> Iterator[Chunk]:
    """Chunks of at most ``max_muons``, in order, that cover every muon once."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts_E)])
    total = int(offsets[-1])
    for start in range(0, total, max_muons):
        stop = min(start + max_muons, total)
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        yield Chunk(start, stop, first, np.diff(np.clip(offsets[first : last + 1], start, stop)))


_LOWEST_PRODUCTION = 0.98
"""Largest fraction of the atmosphere above a muon's production, so that its height stays positive."""


def gamma2(num: int, mean: float, rng: np.random.Generator) -> Float32:
    """Random numbers from Gamma of shape 2 with mean ``mean``, as sums of two exponentials: twice as fast. (P,)."""
    total = rng.standard_exponential(num, dtype=np.float32)
    total += rng.standard_exponential(num, dtype=np.float32)
    total *= np.float32(0.5 * mean)
    return total


class Lines:
    """Straight lines of muons from the decay of their parents: radius = pT / E_surface · (height + slant depth).

    The depth of the first interaction is one draw an event, in part common to its muons: bundles differ in width,
    a latent variable that a generator of muons has to learn. No magnetic field, no scattering in the ice.
    """

    def __init__(self, truth: Expectation, rng: np.random.Generator) -> None:
        deviation_E = truth.shared_E * (rng.standard_exponential(len(truth.mean_E)) - 1.0)
        self._first_gcm2_E = (INTERACTION_LENGTH_GCM2 * (1.0 + deviation_E)).astype(np.float32)
        self._scale_m_E = (SCALE_HEIGHT_M / truth.cos_local_E).astype(np.float32)
        self._log_surface_E = np.log(SURFACE_DEPTH_GCM2 / truth.cos_local_E).astype(np.float32)

    def of(self, chunk: Chunk, surface_gev_P: Float32, rng: np.random.Generator) -> tuple[Float32, Float32]:
        """Slope to the axis, and metres along the track from production to the surface. (P,), (P,)."""
        slope_P = gamma2(len(chunk), PT_MEAN_GEV, rng)
        slope_P /= surface_gev_P
        depth_gcm2_P = gamma2(len(chunk), PRODUCTION_DEPTH_GCM2, rng)
        depth_gcm2_P += chunk.spread(self._first_gcm2_E)
        height_m_P = chunk.spread(self._log_surface_E)
        height_m_P -= np.log(depth_gcm2_P, out=depth_gcm2_P)
        np.maximum(height_m_P, np.float32(-np.log(_LOWEST_PRODUCTION)), out=height_m_P)
        height_m_P *= chunk.spread(self._scale_m_E)
        return slope_P, height_m_P


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
    if config.interactions:
        return simulate_showers(primaries, primaries.depth_m_E[:, None], config, rng)
    truth = expect(primaries, config)
    counts_E = draw_counts(truth.mean_E, truth.shape_E, rng)
    surface = SurfaceEnergies(primaries, truth)
    loss = EnergyLoss(truth, config)
    lines = Lines(truth, rng)
    slant_m_E = truth.slant_m_E.astype(np.float32)
    muons_P3 = np.empty((int(counts_E.sum()), 3), np.float32)
    for chunk in chunks(counts_E):
        surface_gev_P = surface.draw(chunk, rng)
        slope_P, length_m_P = lines.of(chunk, surface_gev_P, rng)
        length_m_P += chunk.spread(slant_m_E)
        radius_m_P = length_m_P * slope_P
        cos_P, sin_P = draw_direction(len(chunk), rng)
        out_P3 = muons_P3[chunk.start : chunk.stop]
        np.multiply(radius_m_P, cos_P, out=out_P3[:, 1])
        np.multiply(radius_m_P, sin_P, out=out_P3[:, 2])
        out_P3[:, 0] = loss.energy_gev(chunk, surface_gev_P)
    return SimulatedBundles(primaries.columns(), counts_E, muons_P3)


class SurfaceEnergies:
    """Energies at the surface of the muons that reach the detector, drawn from Elbert's spectrum."""

    def __init__(self, primaries: SimulatedPrimaries, truth: Expectation) -> None:
        self._spectrum = surface_spectrum()
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
        self._transmission_E = np.exp(-LOSS_B_PER_MWE * truth.slant_mwe_E).astype(np.float32)

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


def depth_grid_m(config: SimulatorConfig) -> Float64:
    """Return the depths that rows may have, vertical metres, ascending."""
    return np.linspace(*config.depth_range_m, config.depth_steps)


def sample_depths(num_showers: int, num_depths: int, config: SimulatorConfig, rng: np.random.Generator) -> Float64:
    """Return different depths of the grid for each shower, ascending. (S, D)."""
    chosen_SD = np.sort(rng.random((num_showers, config.depth_steps)).argsort(1)[:, :num_depths], 1)
    return depth_grid_m(config)[chosen_SD]


def simulate_showers(
    showers: SimulatedPrimaries, depth_m_SD: Float64, config: SimulatorConfig, rng: np.random.Generator
) -> SimulatedBundles:
    """Rows of each shower at each of its depths, ascending, infinite for no further depth.

    ``showers.depth_m_S`` is not used. A real shower's muons go on from depth to depth. A toy's is drawn once, at the
    shallowest depth; each deeper row holds its muons that are still above the cut, on their lines. Energies follow
    Elbert's survival, so the mean at every depth is right, and N never rises with depth.
    """
    reached_SD = np.isfinite(depth_m_SD)
    shower_E = np.nonzero(reached_SD)[0]
    energy_gev_E, mass_E, cos_zenith_E, _ = (column_S[shower_E] for column_S in vars(showers).values())
    rows = SimulatedPrimaries(energy_gev_E, mass_E, cos_zenith_E, depth_m_SD[reached_SD])
    if config.interactions:
        library = library_of(LibraryName(config.interactions, config.library))
        primaries = showers.energy_gev_E, showers.mass_E.astype(np.int64), showers.cos_zenith_E
        counts_SD, muons_P3 = bundles_of_showers(*primaries, depth_m_SD, library, rng, field=config.field)
        return SimulatedBundles(rows.columns(), counts_SD[reached_SD], muons_P3)
    top = replace(showers, depth_m_E=depth_m_SD[:, 0])
    truth_S = expect(top, config)
    counts_S = draw_counts(truth_S.mean_E, truth_S.shape_E, rng)
    truth_E = expect(rows, config)
    loss = EnergyLoss(truth_E, config)

    surface = SurfaceEnergies(top, truth_S)
    lines = Lines(truth_S, rng)
    num_muons = int(counts_S.sum())
    surface_gev_M, slope_M, height_m_M = (np.empty(num_muons, np.float32) for _ in range(3))
    for chunk in chunks(counts_S):
        here = slice(chunk.start, chunk.stop)
        surface_gev_M[here] = surface.draw(chunk, rng)
        slope_M[here], height_m_M[here] = lines.of(chunk, surface_gev_M[here], rng)
    cos_M, sin_M = draw_direction(num_muons, rng)

    threshold_gev_SD = np.full(depth_m_SD.shape, np.inf, np.float32)
    threshold_gev_SD[reached_SD] = loss.threshold_gev_E
    counts_SD, muon_P = _survivors(surface_gev_M, counts_S, threshold_gev_SD)
    counts_E = counts_SD[reached_SD]
    slant_m_E = truth_E.slant_m_E.astype(np.float32)
    muons_P3 = np.empty((len(muon_P), 3), np.float32)
    for chunk in chunks(counts_E):
        source_P = muon_P[chunk.start : chunk.stop]
        radius_m_P = slope_M[source_P] * (height_m_M[source_P] + chunk.spread(slant_m_E))
        out_P3 = muons_P3[chunk.start : chunk.stop]
        out_P3[:, 0] = loss.energy_gev(chunk, surface_gev_M[source_P])
        out_P3[:, 1] = radius_m_P * cos_M[source_P]
        out_P3[:, 2] = radius_m_P * sin_M[source_P]
    return SimulatedBundles(rows.columns(), counts_E, muons_P3)


def _survivors(surface_gev_M: Float32, counts_S: Int64, threshold_gev_SD: Float32) -> tuple[Int64, Int64]:
    """Number of muons of each row, and the index of each muon among those of the showers. (S, D), (P,)."""
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
    return counts_SD, muon_P
