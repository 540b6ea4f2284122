import numpy as np
import pytest

from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.propagation import (
    cos_local_zenith,
    surface_energy_gev,
    vertical_depth_mwe,
)

CONFIG = SimulatorConfig()


def test_water_equivalent_counts_the_firn_as_lighter():
    assert vertical_depth_mwe(np.array([1000.0]), CONFIG)[0] == pytest.approx(200 * 0.832 + 800 * 0.917)


def test_local_zenith_is_less_inclined_near_the_horizon_only():
    assert cos_local_zenith(np.ones(1))[0] == pytest.approx(1.0)
    assert cos_local_zenith(np.array([0.2]))[0] == pytest.approx(0.21832, abs=1e-5)


def test_energy_loss_satisfies_its_equation():
    step_mwe = 1e-3
    before, after = surface_energy_gev(500.0, np.array([1000.0, 1000.0 + step_mwe]), CONFIG)

    assert surface_energy_gev(500.0, np.zeros(1), CONFIG) == pytest.approx(500.0)

    assert (after - before) / step_mwe == pytest.approx(0.259 + 0.363e-3 * before, rel=1e-5)
