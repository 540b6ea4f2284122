from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from common.config import SourceConfig
from common.errors import BadInputError
from common.schema import Column, EventSchema, SourceColumn, UnitArrays, ValueRule
from workloads.muons.columns import MUONS


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"primary": ("energy_gev",)}, r"source\.fields\.primary = .* lacks zenith_rad, mass_a, depth_m"),
        ({"muons": ("energy_gev", "x_m", "y_m", "y_m")}, r"source\.fields\.muons = .* names a number twice"),
        ({"muon": ("energy_gev",)}, r"source\.fields\.muon: .* no such list; it has primary, muons"),
    ],
)
def test_fields_that_cannot_be_are_told(fields: dict[str, tuple[str, ...]], told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        MUONS.stored_as(SourceConfig(fields=fields))


PULSES = Column("pulses", "particle", "<f4", ("time", "charge"))
EVENT = Column("energy", "event", "<f8", ("energy",))
FILLED = (SourceColumn("time", "pulses", 0), SourceColumn("charge", "pulses", 1), SourceColumn("energy", "energy", 0))
NO_ENERGY = "no column energy, but a file column, a rule or a derived column of it"
NO_TIME = NO_ENERGY.replace("energy", "time")


@pytest.mark.parametrize(
    ("columns", "sources", "rules", "told"),
    [
        ((PULSES, PULSES), FILLED, (), "two columns have one name"),
        ((EVENT,), FILLED[2:], (), "no column of particles"),
        ((replace(PULSES, dtype="<f2"), EVENT), FILLED, (), "column pulses has type <f2; expected one of "),
        ((PULSES,), FILLED, (), NO_ENERGY),
        ((PULSES, EVENT), FILLED[1:], (), r"fill each field that is not derived once, but not pulses\[0\]"),
        ((PULSES, EVENT), (*FILLED, SourceColumn("p", "pulses")), (), r"but not pulses\[0\], pulses\[1\]"),
        ((PULSES, EVENT), (*FILLED, SourceColumn("p", "pulses", 2)), (), r"but not pulses\[2\]"),
        (
            (PULSES, EVENT),
            (SourceColumn("p.t", "pulses"), SourceColumn("p.e", "energy", 0)),
            (),
            "p .* per event and per",
        ),
        ((PULSES, EVENT), (FILLED[0], SourceColumn("time.q", "pulses", 1), FILLED[2]), (), "a value and a struct"),
        ((PULSES, EVENT), FILLED, (ValueRule("pulses", 2),), "about a field that its column has not"),
        ((PULSES, EVENT), FILLED, (ValueRule("time", 0),), NO_TIME),
    ],
)
def test_columns_that_no_file_could_fill_are_an_error_of_the_workload(
    columns: tuple[Column, ...], sources: tuple[SourceColumn, ...], rules: tuple[ValueRule, ...], told: str
) -> None:
    assert EventSchema("good", (PULSES, EVENT), FILLED, ())
    with pytest.raises(ValueError, match=told):
        EventSchema("made", columns, sources, rules)


@dataclass(frozen=True)
class Untouched:
    def __call__(self, arrays: UnitArrays, source: SourceConfig) -> None: ...


def derived(*names: str, sources: tuple[SourceColumn, ...] = FILLED, fills: bool = True) -> EventSchema:
    return EventSchema(
        "made", (PULSES, EVENT), sources, (), finish_unit=Untouched() if fills else None, derived=tuple(names)
    )


def test_derived_columns_are_filled_by_no_file() -> None:
    assert derived("energy", sources=FILLED[:2]).read_columns == (PULSES,)
    with pytest.raises(ValueError, match=r"fill each field that is not derived once, but not energy\[0\]"):
        derived("energy")
    with pytest.raises(ValueError, match="no column weight, but a file column, a rule or a derived column of it"):
        derived("weight")
    with pytest.raises(ValueError, match="it has derived columns, but no finish_unit that fills them"):
        derived("energy", sources=FILLED[:2], fills=False)


@pytest.mark.parametrize("column", ["energy", "pulses", "number", "nothing"])
def test_an_identity_is_a_column_of_integers_of_files(column: str) -> None:
    number = Column("number", "event", "<i8", ("a",))
    ids = (Column("id", "event", "<u2", ("a",)), SourceColumn("id", "id", 0))
    EventSchema("good", (PULSES, EVENT, ids[0]), (*FILLED, ids[1]), (), identity="id")
    with pytest.raises(ValueError, match=f"its identity {column} is no column of integers per event that files fill"):
        EventSchema("made", (PULSES, EVENT, number), FILLED, (), Untouched(), ("number",), identity=column)
