"""Air showers: decays, the atmosphere, and cascades with a library whose interactions are known."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from workloads.muons.columns import EARTH_RADIUS_M
from workloads.muons.showers.cascade import (
    GROUND_M,
    TOP_M,
    along_m,
    atmosphere,
    height_m,
    muons_at_ground,
    overburden_gcm2,
)
from workloads.muons.showers.particles import DECAYS, MASS_GEV, Particles, _three_bodies, decayed


def at_rest_axis(pid, energy_gev, num):
    zeros = (np.zeros(num) for _ in range(5))
    return Particles(np.arange(num), np.full(num, pid), np.full(num, energy_gev), *zeros)


def test_a_muon_of_a_pion_has_a_uniform_share_of_its_energy_down_to_the_squared_ratio_of_masses():
    muons = decayed(at_rest_axis(-211, 5e3, 20_000), np.random.default_rng(1))[0]
    least = (MASS_GEV[13] / MASS_GEV[211]) ** 2

    assert set(muons.pid) == {13}, "the negative one of a negative pion"
    assert stats.kstest((muons.energy_gev / 5e3 - least) / (1 - least), "uniform").pvalue > 0.01
    # p* of 29.8 MeV is the largest transverse momentum.
    transverse_gev = np.hypot(muons.slope_x, muons.slope_y) * muons.energy_gev
    assert transverse_gev.max() == pytest.approx(0.02979, rel=0.01)


@pytest.mark.parametrize("species", [211, 321, 130, 310, 3122])
def test_branching_ratios_and_charges_are_those_of_the_table(species):
    daughters = decayed(at_rest_axis(species, 1e4, 40_000), np.random.default_rng(2))
    num_muons = sum((np.abs(part.pid) == 13).sum() for part in daughters)
    expected = sum(share * sum(abs(pid) == 13 for pid in pids) for share, pids in DECAYS[species])

    assert num_muons / 40_000 == pytest.approx(expected, abs=4 * np.sqrt(expected / 40_000))
    if species in (130, 310):
        assert sum(np.sign(part.pid[np.abs(part.pid) == 13]).sum() for part in daughters) < 5 * np.sqrt(num_muons + 1)


@pytest.mark.parametrize("pids", [(211, 211, 211), (13, 14, 111), (11, 12, 211)])
def test_decays_into_three_conserve_energy_and_momentum(pids):
    masses = tuple(MASS_GEV[pid] for pid in pids)
    momenta = _three_bodies(MASS_GEV[321], masses, pids[1] in (12, 14))
    energies = [np.sqrt(mass**2 + (p**2).sum(0)) for mass, p in zip(masses, momenta, strict=True)]

    np.testing.assert_allclose(sum(energies), MASS_GEV[321], rtol=1e-9)
    np.testing.assert_allclose(sum(momenta), 0.0, atol=1e-9)


def test_the_pion_of_a_semileptonic_decay_has_the_spectrum_of_v_minus_a():
    # K_e3, massless leptons: dN/dE ~ p³ f(t)² (the integral of the Dalitz density over the lepton's energy).
    kaon, pion = MASS_GEV[130], MASS_GEV[211]
    momenta = _three_bodies(kaon, (MASS_GEV[11], 0.0, pion), True)
    energy = np.sqrt(pion**2 + (momenta[2] ** 2).sum(0))
    grid = np.linspace(pion, (kaon**2 + pion**2) / (2 * kaon), 4001)
    factor = 1 + 0.0282 * (kaon**2 + pion**2 - 2 * kaon * grid) / MASS_GEV[211] ** 2
    density = (grid**2 - pion**2) ** 1.5 * factor**2
    cumulative = np.cumsum(density) / density.sum()

    # Kept decays are drawn with replacement from eight times as many.
    assert stats.kstest(energy[:4000], lambda e: np.interp(e, grid, cumulative)).pvalue > 0.01


def test_the_air_along_an_inclined_track_is_that_of_a_round_earth():
    assert overburden_gcm2(np.array([GROUND_M]))[0] == pytest.approx(695, rel=0.01)
    for zenith_deg in (0.0, 45.0, 69.0):
        cos = np.cos(np.deg2rad(zenith_deg))

        def per_metre(height, cos=cos):
            ratio = EARTH_RADIUS_M / (EARTH_RADIUS_M + height - GROUND_M)
            slope = (overburden_gcm2(np.array([height - 1.0])) - overburden_gcm2(np.array([height + 1.0])))[0] / 2
            return slope / np.sqrt(1 - (1 - cos**2) * ratio**2)

        for height in (GROUND_M, 9e3, 20e3):
            expected = quad(per_metre, height, 99e3, limit=400)[0]
            found = np.exp(atmosphere().log_gcm2(np.array([cos]), np.array([height])))[0]
            assert found == pytest.approx(expected, rel=2e-3)


def test_heights_distances_and_depths_of_air_are_inverses():
    rng = np.random.default_rng(3)
    cos, height = rng.uniform(0.35, 1.0, 500), rng.uniform(GROUND_M, 6e4, 500)
    np.testing.assert_allclose(height_m(cos, along_m(cos, height)), height, rtol=1e-9)
    np.testing.assert_allclose(atmosphere().height_m(cos, atmosphere().log_gcm2(cos, height)), height, atol=25.0)
    assert along_m(np.ones(1), np.array([TOP_M]))[0] == pytest.approx(TOP_M - GROUND_M)


class Splitting:
    """Library in which a hadron becomes two charged pions of 0.4 of its energy each, and the rest is lost."""

    def __init__(self, length_gcm2, pt_gev=0.0):
        self.length, self.pt_gev = length_gcm2, pt_gev

    def length_gcm2(self, row_P, lg_energy_P):
        return np.full(len(row_P), self.length)

    def nuclear_length_gcm2(self, mass_P, lg_energy_P):
        return np.full(len(mass_P), self.length / 2)

    def interact(self, row_P, energy_gev_P, rng):
        parent = np.repeat(np.arange(len(row_P)), 2)
        pid = np.tile([211, -211], len(row_P))
        px = np.tile([self.pt_gev, -self.pt_gev], len(row_P))
        return parent, pid, 0.4 * energy_gev_P[parent], px, np.zeros(len(pid))

    def break_up(self, mass_P, energy_gev_P, rng):
        # Half of the nucleons are wounded, one flies on, the rest stays together.
        rest = mass_P - mass_P // 2 - 1
        nucleus = np.repeat(np.arange(len(mass_P)), 2)
        size = np.stack([np.ones_like(mass_P), rest], 1).ravel()
        return mass_P // 2, nucleus[size > 0], size[size > 0]


def primaries(num, energy_gev=1e5, mass=1, cos=1.0, threshold_gev=400.0):
    return tuple(np.full(num, value) for value in (energy_gev, mass, cos, threshold_gev))


def test_no_shower_has_more_energy_in_muons_than_its_primary_and_none_is_below_the_threshold():
    for mass in (1, 14, 56):
        muons = muons_at_ground(*primaries(400, 1e6, mass), Splitting(80.0), np.random.default_rng(4))
        energy_gev = np.bincount(muons.shower, muons.energy_gev, 400)
        assert len(muons) > 200
        assert (energy_gev < 0.8 * 1e6).all(), "a fifth is lost at the first interaction"
        assert muons.energy_gev.min() > 400 - 10, "some GeV are lost in the air"
        charge = np.sign(muons.pid).sum()
        assert abs(charge) < 5 * np.sqrt(len(muons)), "as many positive as negative pions"
        assert (muons.along_m > 0).all()


def test_pions_decay_as_often_as_the_density_of_the_air_allows():
    # Exponential air of scale height h, d = m h / (c τ E) << 1: a pion made at depth X decays before it interacts with
    # probability ∫ d / X' exp(-(X' - X) / λ) dX' from X on, whose mean over an exponential X of the same λ is d.
    # Pions have 0.4 of 20 TeV; a muon has a uniform share of that, from 57 % on. No later pion is above 6 TeV.
    muons = muons_at_ground(*primaries(100_000, 2e4, threshold_gev=6e3), Splitting(80.0), np.random.default_rng(5))
    least = (MASS_GEV[13] / MASS_GEV[211]) ** 2
    expected = 2 * (1 - 6 / 8) / (1 - least) * MASS_GEV[211] * 6417 / (7.8045 * 8e3)

    assert len(muons) / 100_000 == pytest.approx(expected, rel=0.08)


def test_the_magnetic_field_bends_muons_of_both_charges_apart_across_the_plane_of_the_axis():
    one = primaries(3000, 1e5, cos=0.5)
    without, bent = (
        muons_at_ground(*one, Splitting(80.0), np.random.default_rng(7), field=field) for field in (False, True)
    )
    spread = [np.std(muons.y_m) / np.std(muons.x_m) for muons in (without, bent)]

    assert spread[0] == pytest.approx(1.0, abs=0.1)
    assert spread[1] > 1.5
    # The field leaves the ground there. With z up along the axis and x downwards, v × B of a positive charge is y.
    assert np.mean(bent.y_m[bent.pid == -13]) > 1 > -1 > np.mean(bent.y_m[bent.pid == 13])
