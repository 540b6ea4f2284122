from __future__ import annotations

import pytest

from common.config import SourceConfig
from common.errors import BadInputError
from common.schema import MUONS


def primary_of(source: SourceConfig) -> tuple[str, ...]:
    workload = MUONS.stored_as(source)
    column = next(column for column in workload.source_columns if column.name == "primary")
    return workload.stored_fields(column)


def test_files_hold_the_workloads_fields_unless_told_otherwise() -> None:
    assert primary_of(SourceConfig()) == ("energy_gev", "zenith_rad", "mass_a", "depth_m")
    assert MUONS.stored_as(SourceConfig()) == MUONS


def test_other_fields_are_those_that_the_configuration_names() -> None:
    names = ("time_s", "energy_gev", "zenith_rad", "depth_m", "mass_a")
    assert primary_of(SourceConfig(fields={"primary": names})) == names


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"primary": ("energy_gev",)}, r"source\.fields\.primary = .* lacks zenith_rad, mass_a, depth_m"),
        ({"muons": ("energy_gev", "x_m", "y_m", "y_m")}, r"source\.fields\.muons = .* names a number twice"),
        (
            {"muon": ("energy_gev",)},
            r"source\.fields\.muon: .* no such list; it has primary, muons",
        ),
    ],
)
def test_fields_that_cannot_be_are_told(fields: dict[str, tuple[str, ...]], told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        MUONS.stored_as(SourceConfig(fields=fields))
