from dataclasses import FrozenInstanceError

import pytest

from common.errors import BadInputError
from workloads.muons.simulator.config import ELBERT_FITS, PRESETS, SimulatorConfig, preset


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spectrum", "cosmic"),
        ("fluctuation", "gauss"),
        ("lateral", "round"),
        ("elbert", "modern"),
        ("depth_kind", "deep"),
        ("gamma", 0.0),
        ("gamma", float("nan")),
        ("pt_mean_gev", -0.1),
        ("energy_min_gev", 10.0),
        ("energy_min_gev", 1e9),
        ("energy_max_gev", 1e13),
        ("theta_max_deg", 85.0),
        ("theta_max_deg", 0.0),
        ("depth_min_m", 2900.0),
        ("depth_min_m", 50.0),
        ("depth_max_m", 9000.0),
        ("depth_steps", -1),
        ("mass_fractions", (0.5, 0.5, 0.5, 0.0, 0.0)),
        ("mass_fractions", (1.5, -0.5, 0.0, 0.0, 0.0)),
        ("mass_fractions", (1.0,)),
        ("firn_m", 1000.0),
    ],
)
def test_a_value_outside_the_formulas_is_refused_by_name(field, value):
    with pytest.raises(BadInputError, match=field):
        SimulatorConfig(**{field: value})


def test_presets_are_the_documented_five():
    assert set(PRESETS) == {"corsika", "bench", "heavy", "flat", "h3a"}


def test_a_preset_can_be_changed_without_touching_the_preset():
    assert preset("bench", depth_kind="slant").depth_kind == "slant"
    assert PRESETS["bench"].depth_kind == "vertical"


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(BadInputError, match="corsika, bench"):
        preset("mupage")


def test_a_configuration_is_checked_after_a_change_too():
    with pytest.raises(BadInputError, match="theta_max_deg"):
        preset("bench", theta_max_deg=90.0)


def test_a_configuration_cannot_change_in_place():
    with pytest.raises(FrozenInstanceError):
        SimulatorConfig().gamma = 3.0


def test_the_chosen_fit_is_the_one_named():
    assert SimulatorConfig(elbert="generalized").elbert_fit is ELBERT_FITS["generalized"]
