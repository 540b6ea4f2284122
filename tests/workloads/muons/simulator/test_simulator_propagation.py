import numpy as np
import pytest

from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.propagation import (
    cos_local_zenith,
    energy_at_depth_gev,
    surface_energy_gev,
    vertical_depth_mwe,
)

CONFIG = SimulatorConfig()


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
