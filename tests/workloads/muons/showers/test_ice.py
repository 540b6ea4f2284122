"""Muons in ice: mean losses are those of published tables, and muons lose and scatter as the tables say."""

from functools import cache

import numpy as np
import pytest

from workloads.muons.showers.ice import MUON_GEV, RADIATION_LENGTH_MWE, SCATTERING_GEV, MuonsInIce

# Kinetic energy (GeV); loss by ionisation, bremsstrahlung, pairs, photonuclear interactions, all (MeV cm²/g); range
# (g/cm²) of muons in water: PUMAS 0.15 (Niess et al., Comput. Phys. Commun. 229 (2018) 54), from the cross sections and
# the density effect of Groom et al. but for photonuclear interactions (Dutta et al. 2001).
PUMAS = (
    (10, 2.482, 0.004861, 0.004871, 0.003362, 2.495, 4282),
    (20, 2.581, 0.01147, 0.0134, 0.007443, 2.613, 8190),
    (50, 2.699, 0.03472, 0.04585, 0.01919, 2.798, 1.925e4),
    (100, 2.781, 0.07852, 0.1094, 0.03845, 3.007, 3.645e4),
    (200, 2.860, 0.1744, 0.2501, 0.07728, 3.362, 6.786e4),
    (500, 2.965, 0.4879, 0.7083, 0.1975, 4.358, 1.460e5),
    (1000, 3.045, 1.043, 1.51, 0.4053, 6.003, 2.434e5),
    (2000, 3.126, 2.198, 3.155, 0.8459, 9.325, 3.763e5),
    (5000, 3.237, 5.777, 8.178, 2.276, 19.47, 5.949e5),
    (10_000, 3.324, 11.86, 16.63, 4.854, 36.66, 7.795e5),
    (20_000, 3.414, 24.15, 33.59, 10.40, 71.55, 9.722e5),
    (30_000, 3.468, 36.50, 50.59, 16.27, 106.8, 1.087e6),
    (100_000, 3.634, 123.4, 169.8, 61.71, 358.5, 1.425e6),
)


@cache
def ice():
    return MuonsInIce()


def loss_gev_per_mwe(energy_gev, kind=None):
    parts = ice().mean_loss_gev_per_mwe
    table = sum(parts.values()) if kind is None else parts[kind]
    return np.exp(np.interp(np.log(energy_gev), np.log(ice().energies_gev), np.log(table)))


def propagated(energy_gev, slant_mwe, num, seed=3, track_4P=None):
    track_4P = np.zeros((4, num)) if track_4P is None else track_4P
    energy_gev_P = np.broadcast_to(energy_gev, num)
    generator = np.random.default_rng(seed)
    return ice().propagate(energy_gev_P, track_4P, np.full(num, slant_mwe), np.full(num, 1.1), generator), track_4P


@pytest.mark.parametrize(
    ("kind", "column", "tolerance"),
    # Photonuclear: two models, 0.3 to 17 % of the loss.
    [
        ("ionisation", 1, 1e-3),
        ("bremsstrahlung", 2, 0.04),
        ("pairs", 3, 4e-3),
        ("photonuclear", 4, 0.3),
        (None, 5, 0.01),
    ],
)
def test_mean_losses_are_those_of_a_published_table(kind, column, tolerance):
    table = np.array(PUMAS)
    mev_cm2_per_g = 10.0 * loss_gev_per_mwe(table[:, 0] + MUON_GEV, kind)

    np.testing.assert_allclose(mev_cm2_per_g, table[:, column], rtol=tolerance)


@pytest.mark.parametrize("slant_mwe", [917.0, 1834.0])
def test_mean_energy_at_depth_is_the_integral_of_the_mean_loss(slant_mwe):
    expected = 20_000.0
    for _ in range(500):
        middle = expected - 0.5 * slant_mwe / 500 * loss_gev_per_mwe(expected)
        expected -= slant_mwe / 500 * loss_gev_per_mwe(middle)
    energy_gev, _ = propagated(20_000.0, slant_mwe, 40_000)

    assert abs(energy_gev.mean() - expected) < 3.0 * energy_gev.std() / np.sqrt(40_000)


@pytest.mark.parametrize(
    ("energy_gev", "survive", "mean_gev"), [(700.0, 0.4209, 36.3), (850.0, 0.7106, 98.8), (1200.0, 0.8723, 269.9)]
)
def test_as_many_muons_arrive_after_2_km_of_water_as_in_proposal(energy_gev, survive, mean_gev):
    # PROPOSAL 6.1.8 (Koehne et al. 2013) with these cross sections, v_cut 0.01, 40,000 muons: statistical errors of
    # 0.6, 0.3, 0.2 % of the number and 0.5, 0.3, 0.3 % of the energy.
    energy_P, _ = propagated(energy_gev, 2000.0, 20_000)

    assert np.mean(energy_P > 0.0) == pytest.approx(survive, rel=0.025)
    assert energy_P[energy_P > 0.0].mean() == pytest.approx(mean_gev, rel=0.03)


def test_thin_ice_scatters_by_the_closed_formula():
    energy_P, track_4P = propagated(1e5, 10.0, 40_000)
    x_m, y_m, slope_x, _ = track_4P[:, energy_P > 0.97e5]
    angle = SCATTERING_GEV / 0.9985e5 * np.sqrt(10.0 / RADIATION_LENGTH_MWE)

    assert np.std(slope_x) == pytest.approx(angle, rel=0.015)
    assert np.std([x_m, y_m]) == pytest.approx(11.0 * angle / np.sqrt(3.0), rel=0.015)
    assert np.corrcoef(x_m, slope_x)[0, 1] == pytest.approx(np.sqrt(0.75), abs=0.005)


def test_a_way_in_three_parts_scatters_as_the_way_at_once():
    before_gev = np.linspace(60.0, 80.0, 40_000)
    energy_P, at_once_4P = propagated(before_gev, 150.0, 40_000)
    expected = np.cov(at_once_4P[:, energy_P > 0.0])
    energy_P, track_4P = before_gev, np.zeros((4, 40_000))
    for seed in (4, 5, 6):
        energy_P, _ = propagated(energy_P, 50.0, 40_000, seed, track_4P)
    actual = np.cov(track_4P[:, energy_P > 0.0])

    np.testing.assert_allclose(actual[[0, 0, 2], [0, 2, 2]], expected[[0, 0, 2], [0, 2, 2]], rtol=0.03)


def test_a_stopped_muon_has_no_energy_and_one_that_goes_nowhere_keeps_its_own():
    track_4P = np.array([[1.0, 1.0], [2.0, 2.0], [3e-3, 3e-3], [4e-3, 4e-3]])
    slant_mwe = np.array([100.0, 0.0])
    energy_P = ice().propagate(np.array([5.0, 50.0]), track_4P, slant_mwe, np.ones(2), np.random.default_rng(1))

    assert energy_P.tolist() == pytest.approx([0.0, 50.0])
    assert track_4P[:, 1].tolist() == [1.0, 2.0, 3e-3, 4e-3]
