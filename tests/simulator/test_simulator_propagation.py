import numpy as np
import pytest

from services.simulator.config import SimulatorConfig
from services.simulator.propagation import (
    cos_local_zenith,
    energy_at_depth_gev,
    slant_depth_m,
    surface_energy_gev,
    vertical_depth_m,
    vertical_depth_mwe,
)

CONFIG = SimulatorConfig()


def test_slant_depth_follows_the_published_formula():
    cos_zenith, depth_m, radius_m = np.array([1.0, 0.8, 0.5, 0.174]), 2000.0, CONFIG.earth_radius_m
    root = np.sqrt(2 * radius_m * depth_m + (cos_zenith * (radius_m - depth_m)) ** 2 - depth_m**2)
    expected_m = root - (radius_m - depth_m) * cos_zenith

    np.testing.assert_allclose(slant_depth_m(cos_zenith, np.full(4, depth_m), CONFIG), expected_m, rtol=1e-7)


def test_slant_depth_of_a_vertical_track_is_the_depth():
    assert slant_depth_m(np.ones(1), np.array([1950.0]), CONFIG)[0] == pytest.approx(1950.0, rel=1e-12)


def test_slant_depth_of_an_inclined_track_is_a_little_shorter_than_on_a_flat_earth():
    cos_zenith = np.cos(np.deg2rad([60.0, 80.0]))
    ratio = slant_depth_m(cos_zenith, np.full(2, 2000.0), CONFIG) / (2000.0 / cos_zenith)

    np.testing.assert_allclose(ratio, [0.99953, 0.99500], atol=2e-5)


def test_vertical_depth_undoes_slant_depth():
    cos_zenith = np.linspace(0.17, 1.0, 50)
    depth_m = np.linspace(1000.0, 2800.0, 50)

    back_m = vertical_depth_m(cos_zenith, slant_depth_m(cos_zenith, depth_m, CONFIG), CONFIG)

    np.testing.assert_allclose(back_m, depth_m, rtol=1e-12)


def test_water_equivalent_counts_the_firn_as_lighter():
    assert vertical_depth_mwe(np.array([1000.0]), CONFIG)[0] == pytest.approx(200 * 0.832 + 800 * 0.917)


def test_local_zenith_is_less_inclined_near_the_horizon_only():
    assert cos_local_zenith(np.ones(1))[0] == pytest.approx(1.0)
    assert cos_local_zenith(np.array([0.2]))[0] == pytest.approx(0.21832, abs=1e-5)


def test_energy_at_depth_undoes_energy_at_the_surface():
    slant_mwe = np.array([900.0, 2000.0, 8000.0])
    surface_gev = surface_energy_gev(np.array([1.0, 100.0, 1e4]), slant_mwe, CONFIG)

    np.testing.assert_allclose(energy_at_depth_gev(surface_gev, slant_mwe, CONFIG), [1.0, 100.0, 1e4], rtol=1e-9)


def test_energy_loss_satisfies_its_equation():
    step_mwe = 1e-3
    before, after = surface_energy_gev(500.0, np.array([1000.0, 1000.0 + step_mwe]), CONFIG)

    assert (after - before) / step_mwe == pytest.approx(0.259 + 0.363e-3 * before, rel=1e-5)
