"""Hadronic cascades in air down to the muons at the ground, many showers at once, generation after generation.

Atmosphere of the South Pole on a round Earth; nuclei by fragmentation and wounded nucleons (semi-superposition), other
interactions from the library. Left out: muons of photons, the flight of charmed hadrons (they decay at once), and what
is below the threshold. Particles are those of `particles`; P particles, S showers, M muons.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from workloads.muons.columns import EARTH_RADIUS_M
from workloads.muons.showers.interactions import LG_MAX, PROJECTILE_ROWS, Library
from workloads.muons.showers.particles import (
    DECAY_LENGTH_M,
    FOLLOWED,
    MASS_GEV,
    MUON,
    NUCLEUS,
    Float64,
    Int64,
    Particles,
    decayed,
)

GROUND_M, TOP_M = 2835.0, 112_800.0
"""Height of the ice surface above the sea, and of the first interactions' beginning."""

MOST_ENERGY_GEV = 10**LG_MAX
LEAST_COS_ZENITH = 0.3
"""Lowest cosine of the zenith angle of the atmosphere's tables: 72°."""

_LAYERS = (
    (0.0, -69.7259, 1111.70, 7660.99),
    (7.6e3, -2.79781, 1128.64, 6417.16),
    (22.0e3, 0.262692, 1413.98, 5880.82),
    (40.4e3, -8.41695e-5, 587.688, 6933.00),
)
"""South Pole in April (CORSIKA's atmosphere by S. De Ridder): from a height in metres on, the overburden in g/cm² is
a + b exp(-h / c), and above 100 km a - h / c."""
_HIGHEST_M, _HIGHEST = 100e3, (0.00207722, 5.4303203e7)

_STEP_M, _STEP_LOG_GCM2, _NUM_COS, _LEAST_GCM2 = 100.0, 0.02, 64, 1e-4

_FERMI_PT_GEV = 0.09
"""Width of a transverse momentum component of a fragment: Goldhaber, Phys. Lett. B 53 (1974) 306."""
_AIR_RADIATION_LENGTH_GCM2, _SCATTERING_GEV, _SCALE_M = 36.66, 0.0136, 7000.0
"""Multiple scattering on a way x: rms angle 13.6 MeV / E (x / X0)^½ in a plane. Scale height of the air for it."""
_LOSS_GEV_PER_GCM2, _LOSS_PER_GCM2 = 2.5e-3, 3e-6
"""Mean loss of muons in air."""

FIELD_T = (1.6e-5, 5.2e-5)
"""Earth's field at the South Pole: horizontal, and upwards, out of the ground (IGRF)."""
_BEND_GEV_PER_T_M = 0.2998

_MASSES = np.array([MASS_GEV[abs(pid)] for pid in FOLLOWED.tolist()])
_DECAY_LENGTHS = np.array([DECAY_LENGTH_M.get(abs(pid), np.inf) for pid in FOLLOWED.tolist()])


def overburden_gcm2(height_m: Float64) -> Float64:
    """Return the vertical thickness of the air above a height."""
    found = np.maximum(_HIGHEST[0] - height_m / _HIGHEST[1], 1e-8)
    for low_m, a, b, c in _LAYERS:
        inside = (height_m >= low_m) & (height_m < _HIGHEST_M)
        found[inside] = a + b * np.exp(-height_m[inside] / c)
    return found


class Atmosphere:
    """Thickness of the air along tracks, by the cosine of their zenith angle at the ground, in bilinear tables."""

    def __init__(self) -> None:
        self._cos = np.linspace(LEAST_COS_ZENITH, 1.0, _NUM_COS)
        height_m = np.arange(GROUND_M, TOP_M + _STEP_M, _STEP_M)
        slab_gcm2 = -np.diff(overburden_gcm2(height_m), append=0.0)
        middle_m = height_m + _STEP_M / 2
        ratio = (EARTH_RADIUS_M / (EARTH_RADIUS_M + middle_m - GROUND_M)) ** 2
        local_cos = np.sqrt(1 - (1 - self._cos[:, None] ** 2) * ratio)
        along_gcm2 = np.cumsum((slab_gcm2 / local_cos)[:, ::-1], 1)[:, ::-1]
        self._log_gcm2 = np.log(np.maximum(along_gcm2, _LEAST_GCM2))
        self._log_grid = np.arange(np.log(_LEAST_GCM2), self._log_gcm2.max() + _STEP_LOG_GCM2, _STEP_LOG_GCM2)
        self._height_m = np.stack([np.interp(self._log_grid, row[::-1], height_m[::-1]) for row in self._log_gcm2])

    def log_gcm2(self, cos_P: Float64, height_m_P: Float64) -> Float64:
        """Return ln of the air above a height in g/cm² along the track. (P,)."""
        return self._between(self._log_gcm2, cos_P, (height_m_P - GROUND_M) / _STEP_M)

    def height_m(self, cos_P: Float64, log_gcm2_P: Float64) -> Float64:
        """Return the height below so much air along the track, at least that of the ground. (P,)."""
        return self._between(self._height_m, cos_P, (log_gcm2_P - self._log_grid[0]) / _STEP_LOG_GCM2)

    def _between(self, table: Float64, cos_P: Float64, at_P: Float64) -> Float64:
        row_P = (cos_P - LEAST_COS_ZENITH) / (1 - LEAST_COS_ZENITH) * (_NUM_COS - 1)
        low_row_P = np.minimum(row_P.astype(np.int64), _NUM_COS - 2)
        at_P = np.clip(at_P, 0, table.shape[1] - 1.0001)
        low_P = at_P.astype(np.int64)
        place_P, part_P = low_row_P * table.shape[1] + low_P, at_P - low_P
        flat = table.ravel()
        lower_P = flat[place_P] * (1 - part_P) + flat[place_P + 1] * part_P
        place_P += table.shape[1]
        upper_P = flat[place_P] * (1 - part_P) + flat[place_P + 1] * part_P
        between_P: Float64 = lower_P + (row_P - low_row_P) * (upper_P - lower_P)
        return between_P


atmosphere = cache(Atmosphere)


def height_m(cos_P: Float64, along_m_P: Float64) -> Float64:
    """Return the height above the sea of points of tracks on a round Earth, from their distance to the ground. (P,)."""
    rise_m2 = 2 * EARTH_RADIUS_M * along_m_P * cos_P + along_m_P**2
    return rise_m2 / (np.sqrt(EARTH_RADIUS_M**2 + rise_m2) + EARTH_RADIUS_M) + GROUND_M


def along_m(cos_P: Float64, height_m_P: Float64) -> Float64:
    """Return the distance to the ground along the track: the inverse of height_m. (P,)."""
    above_m = height_m_P - GROUND_M
    extra_m2 = 2 * EARTH_RADIUS_M * above_m + above_m**2
    down_m = EARTH_RADIUS_M * cos_P
    return extra_m2 / (np.sqrt(down_m**2 + extra_m2) + down_m)


def muons_at_ground(
    energy_gev_S: Float64,
    mass_S: Int64,
    cos_S: Float64,
    threshold_gev_S: Float64,
    library: Library,
    rng: np.random.Generator,
    *,
    field: bool = False,
) -> Particles:
    """Return the muons of nuclei at the top of the atmosphere, one a shower, at the ground, in no order.

    ``threshold_gev_S``: energy below which particles are dropped, for a nucleus by nucleon.
    ``field``: muons are bent by the Earth's.
    """
    num = len(cos_S)
    particles = Particles(
        np.arange(num),
        np.where(mass_S > 1, NUCLEUS + mass_S, 2212),
        energy_gev_S.astype(np.float64),
        along_m(cos_S, np.full(num, TOP_M)),
        *(np.zeros(num) for _ in range(4)),
    )
    muons = []
    while len(particles):
        is_muon = np.abs(particles.pid) == MUON
        muons.append(particles.take(is_muon))
        is_nucleus = particles.pid > NUCLEUS
        born = [
            *_of_nuclei(particles.take(is_nucleus), cos_S, library, rng),
            *_of_hadrons(particles.take(~is_muon & ~is_nucleus), cos_S, library, rng),
        ]
        particles = Particles.joined(born)
        nucleons = np.where(particles.pid > NUCLEUS, particles.pid - NUCLEUS, 1)
        particles = particles.take(particles.energy_gev > threshold_gev_S[particles.shower] * nucleons)
    at_ground = Particles.joined(muons)
    _to_ground(at_ground, cos_S, rng.uniform(0, 2 * np.pi, num) if field else None, rng)
    return at_ground


def _fly(
    particles: Particles, cos_S: Float64, length_gcm2_P: Float64, decay_m_P: Float64, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Move particles to where they interact or decay; return which decay, and which do either above the ground."""
    air, cos_P = atmosphere(), cos_S[particles.shower]
    log_gcm2_P = air.log_gcm2(cos_P, height_m(cos_P, particles.along_m))
    log_gcm2_P = np.log(np.exp(log_gcm2_P) + rng.standard_exponential(len(particles)) * length_gcm2_P)
    interaction_m_P = np.minimum(along_m(cos_P, air.height_m(cos_P, log_gcm2_P)), particles.along_m)
    decay_at_m_P = particles.along_m - rng.standard_exponential(len(particles)) * decay_m_P
    decays_P = decay_at_m_P > interaction_m_P
    end_m_P = np.where(decays_P, decay_at_m_P, interaction_m_P)
    way_m_P = particles.along_m - end_m_P
    particles.x_m += particles.slope_x * way_m_P
    particles.y_m += particles.slope_y * way_m_P
    particles.along_m = end_m_P
    return decays_P, end_m_P > 0


def _of_nuclei(nuclei: Particles, cos_S: Float64, library: Library, rng: np.random.Generator) -> Iterator[Particles]:
    """Yield what nuclei become: secondaries of their wounded nucleons, and fragments."""
    mass_P = nuclei.pid - NUCLEUS
    length_gcm2_P = library.nuclear_length_gcm2(mass_P, np.log10(nuclei.energy_gev / mass_P))
    _, above = _fly(nuclei, cos_S, length_gcm2_P, np.full(len(nuclei), np.inf), rng)
    nuclei, mass_P = nuclei.take(above), mass_P[above]
    wounded_P, nucleus_F, size_F = library.break_up(mass_P, nuclei.energy_gev, rng)
    nucleon_gev_P = nuclei.energy_gev / mass_P
    index = np.repeat(np.arange(len(nuclei)), wounded_P)
    nucleons = nuclei.take(index)
    nucleons.energy_gev = nucleon_gev_P[index]
    yield _interacted(nucleons, rng.integers(0, 2, len(nucleons)), library, rng)
    fragments = nuclei.take(nucleus_F)
    fragments.energy_gev = nucleon_gev_P[nucleus_F] * size_F
    fragments.pid = np.where(size_F > 1, NUCLEUS + size_F, np.where(rng.random(len(size_F)) < 0.5, 2212, 2112))
    of_mass_F = mass_P[nucleus_F]
    width_gev = _FERMI_PT_GEV * np.sqrt(size_F * np.maximum(of_mass_F - size_F, 0) / np.maximum(of_mass_F - 1, 1))
    fragments.slope_x += width_gev / fragments.energy_gev * rng.standard_normal(len(size_F))
    fragments.slope_y += width_gev / fragments.energy_gev * rng.standard_normal(len(size_F))
    yield fragments


def _interacted(projectiles: Particles, row_P: Int64, library: Library, rng: np.random.Generator) -> Particles:
    projectile_S, pid_S, energy_gev_S, px_gev_S, py_gev_S = library.interact(row_P, projectiles.energy_gev, rng)
    secondaries = projectiles.take(projectile_S)
    secondaries.pid, secondaries.energy_gev = pid_S, energy_gev_S
    secondaries.slope_x += px_gev_S / energy_gev_S
    secondaries.slope_y += py_gev_S / energy_gev_S
    return secondaries


def _of_hadrons(hadrons: Particles, cos_S: Float64, library: Library, rng: np.random.Generator) -> Iterator[Particles]:
    """Yield what hadrons become, by interaction or decay."""
    kind_P = np.searchsorted(FOLLOWED, hadrons.pid)
    row_P = PROJECTILE_ROWS[kind_P]
    decay_m_P = hadrons.energy_gev / _MASSES[kind_P] * _DECAY_LENGTHS[kind_P]
    length_gcm2_P = library.length_gcm2(np.maximum(row_P, 0), np.log10(hadrons.energy_gev))
    decays, above = _fly(hadrons, cos_S, length_gcm2_P, decay_m_P, rng)
    reacts = above & ~decays & (row_P >= 0)
    yield _interacted(hadrons.take(reacts), row_P[reacts], library, rng)
    yield from decayed(hadrons.take(above & decays), rng)


def _to_ground(muons: Particles, cos_S: Float64, azimuth_S: Float64 | None, rng: np.random.Generator) -> None:
    """Move muons to the ground, in place: scattering, mean loss, and with an azimuth the Earth's field."""
    cos_M, air = cos_S[muons.shower], atmosphere()
    ground_gcm2 = np.exp(air.log_gcm2(cos_M, np.full(len(muons), GROUND_M)))
    way_gcm2 = np.maximum(ground_gcm2 - np.exp(air.log_gcm2(cos_M, height_m(cos_M, muons.along_m))), 0.0)
    angle = _SCATTERING_GEV / muons.energy_gev * np.sqrt(way_gcm2 / _AIR_RADIATION_LENGTH_GCM2)
    # Places of scattering, for air that thins out exponentially: mean and spread of the distance to the ground.
    scale_m = _SCALE_M / cos_M
    way = muons.along_m / scale_m
    scattered = np.maximum(-np.expm1(-way), 1e-9)
    mean_m = scale_m * (1 - (1 + way) * np.exp(-way)) / scattered
    square_m2 = scale_m**2 * (2 - (2 + 2 * way + way**2) * np.exp(-way)) / scattered
    spread_m = np.sqrt(np.maximum(square_m2 - mean_m**2, 0.0))
    for place, slope in ((muons.x_m, muons.slope_x), (muons.y_m, muons.slope_y)):
        kick = angle * rng.standard_normal(len(muons))
        place += slope * muons.along_m + kick * mean_m + angle * spread_m * rng.standard_normal(len(muons))
        slope += kick
    if azimuth_S is not None:
        # x lies in the vertical plane of the axis, y is horizontal, z points up along the axis; muons fly to -z.
        (horizontal_t, upward_t), azimuth_M = FIELD_T, azimuth_S[muons.shower]
        along_x_t = horizontal_t * np.cos(azimuth_M) * cos_M - upward_t * np.sqrt(1 - cos_M**2)
        along_y_t = -horizontal_t * np.sin(azimuth_M)
        charge = np.where(muons.pid < 0, 1.0, -1.0)  # 13 is the negative muon
        bend = _BEND_GEV_PER_T_M * charge * muons.along_m / muons.energy_gev
        muons.x_m += bend * along_y_t * muons.along_m / 2
        muons.y_m -= bend * along_x_t * muons.along_m / 2
        muons.slope_x += bend * along_y_t
        muons.slope_y -= bend * along_x_t
    muons.energy_gev -= way_gcm2 * (_LOSS_GEV_PER_GCM2 + _LOSS_PER_GCM2 * muons.energy_gev)
