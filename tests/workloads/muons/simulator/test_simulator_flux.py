import numpy as np
import pytest
from scipy import stats

from workloads.muons.simulator.config import SimulatorConfig, preset
from workloads.muons.simulator.flux import SimulatedPrimaries, h3a_flux, sample_primaries


def rng():
    return np.random.default_rng(20)


def test_cos_squared_of_the_zenith_is_uniform():
    primaries = sample_primaries(50_000, preset("bench", theta_max_deg=70.0), rng())
    lowest = np.cos(np.deg2rad(70.0)) ** 2
    share = (primaries.cos_zenith_E**2 - lowest) / (1.0 - lowest)

    assert stats.kstest(share, "uniform").pvalue > 0.01


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0, 2.7])
def test_energies_follow_the_power_law(gamma):
    config = SimulatorConfig(gamma=gamma, energy_min_gev=1e4, energy_max_gev=1e8)
    energy_gev = sample_primaries(50_000, config, rng()).energy_gev_E

    def cdf(energy):
        if gamma == 1.0:
            return np.log(energy / 1e4) / np.log(1e4)
        power = 1.0 - gamma
        return (energy**power - 1e4**power) / (1e8**power - 1e4**power)

    assert stats.kstest(energy_gev, cdf).pvalue > 0.01


def test_masses_come_in_the_given_fractions():
    config = SimulatorConfig(mass_fractions=(0.5, 0.0, 0.2, 0.0, 0.3))
    mass, count = np.unique(sample_primaries(50_000, config, rng()).mass_E, return_counts=True)

    assert mass.tolist() == [1.0, 14.0, 56.0]
    np.testing.assert_allclose(count / 50_000, [0.5, 0.2, 0.3], atol=0.01)


def test_h3a_flux_matches_a_value_computed_by_hand():
    # Proton at 1 PeV: 7860 E^-2.66 e^-.25 + 20 E^-2.4 e^-1/30 + 1.7 E^-2.4 e^-1/2000.
    expected = (
        7860 * 1e6**-2.66 * np.exp(-0.25) + 20 * 1e6**-2.4 * np.exp(-1 / 30) + 1.7 * 1e6**-2.4 * np.exp(-1 / 2000)
    )
    assert h3a_flux(np.array([1e6]), 0)[0] == pytest.approx(expected)


def test_h3a_energies_and_masses_follow_the_flux():
    config = preset("h3a")
    primaries = sample_primaries(100_000, config, rng())
    log_energy = np.linspace(np.log(1e4), np.log(1e11), 20_001)
    energy_gev = np.exp(log_energy)
    total = [np.trapezoid(h3a_flux(energy_gev, group) * energy_gev, log_energy) for group in range(5)]
    _, count = np.unique(primaries.mass_E, return_counts=True)
    np.testing.assert_allclose(count / 100_000, np.array(total) / sum(total), atol=0.006)

    iron = primaries.energy_gev_E[primaries.mass_E == 56.0]
    above = energy_gev > 1e5
    share = np.trapezoid((h3a_flux(energy_gev, 4) * energy_gev)[above], log_energy[above]) / total[4]
    assert np.mean(iron > 1e5) == pytest.approx(share, abs=0.01)


def test_depths_lie_on_the_converters_grid():
    depth_m = sample_primaries(20_000, preset("bench"), rng()).depth_m_E

    np.testing.assert_allclose(np.unique(depth_m), np.linspace(1000.0, 2800.0, 100))


def test_depths_are_continuous_without_a_grid():
    depth_m = sample_primaries(5000, preset("bench", depth_steps=0), rng()).depth_m_E

    assert len(np.unique(depth_m)) == 5000
    assert stats.kstest(depth_m, stats.uniform(1000.0, 1800.0).cdf).pvalue > 0.01


@pytest.mark.parametrize("depth_kind", ["vertical", "slant"])
def test_primaries_read_back_from_their_columns_are_the_same(depth_kind):
    config = preset("bench", depth_kind=depth_kind)
    primaries = sample_primaries(1000, config, rng())
    back = SimulatedPrimaries.from_columns(primaries.columns(config), config)

    np.testing.assert_allclose(back.energy_gev_E, primaries.energy_gev_E, rtol=1e-6)
    np.testing.assert_array_equal(back.mass_E, primaries.mass_E)
    np.testing.assert_allclose(back.cos_zenith_E, primaries.cos_zenith_E, atol=1e-6)
    np.testing.assert_allclose(back.depth_m_E, primaries.depth_m_E, rtol=1e-5)


def test_the_depth_column_holds_the_path_through_the_ice_on_request():
    primaries = SimulatedPrimaries(np.array([1e6]), np.array([1.0]), np.array([0.5]), np.array([2000.0]))

    assert primaries.columns(preset("bench"))[0, 3] == pytest.approx(2000.0)
    assert primaries.columns(preset("bench", depth_kind="slant"))[0, 3] == pytest.approx(3998.1, abs=0.5)
