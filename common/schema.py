"""Columns, units and dtypes, once: what stands in a source file and what stands in a slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from common.config import SourceConfig
from common.errors import BadInputError

SCHEMA_VERSION = 2
"""Part of the plan hash: raise it when the meaning or the order of a column changes."""


@dataclass(frozen=True)
class Column:
    """One named array of a unit: one row per event or per particle, ``fields`` wide."""

    name: str
    per: Literal["event", "particle"]
    dtype: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class SourceColumn:
    """One column of a source file: numbers (nesting 0), lists of numbers (1), or lists of such lists (2)."""

    name: str
    nesting: Literal[0, 1, 2]
    into: str
    """Column of the unit that it fills."""
    field: int | None = None
    """Field of that column; None: all of them, so that each innermost list must have that many numbers."""
    stored: tuple[str, ...] = ()
    """What each innermost list of the files holds, in order. Empty: the fields of ``into``, and no more."""
    also_seen: tuple[str, ...] = ()
    """Other numbers that files are known to hold: proposed to the user, never assumed."""


@dataclass(frozen=True)
class ValueRule:
    """Values that a field may have: finite, and at least ``minimum``. Anything else is bad input."""

    column: str
    field: int
    minimum: float
    drop_unless_positive: bool = False
    """A particle with 0 or less here is none (converters write such fillers): it is dropped and counted."""


@dataclass(frozen=True)
class Depth:
    """Where an event's depth stands that some files give along the track: see `source.depth_kind`."""

    column: str
    depth: int
    zenith: int


@dataclass(frozen=True)
class FlatTables:
    """The same events as three HDF5 datasets: one row per event, one row per particle, and particles per event.

    The ids lead every row of the first two; the numbers of a list follow. An event without particles may stand there
    as one particle of zeros only.
    """

    events: str
    particles: str
    counts: str
    ids: tuple[str, ...]
    """File columns that the leading numbers stand for."""
    event_list: str
    """File column whose numbers follow the ids in a row of ``events``."""
    particle_list: str
    """The same in a row of ``particles``."""


@dataclass(frozen=True)
class Workload:
    """The ragged columns that a workload's reader fills and its model reads, and the file columns they come from."""

    name: str
    columns: tuple[Column, ...]
    source_columns: tuple[SourceColumn, ...]
    rules: tuple[ValueRule, ...]
    slant_depth: Depth | None = None
    """What the decoder turns into a vertical depth; None: nothing."""
    depth: Depth | None = None
    """What could be a slant depth."""
    nulls: Literal["error", "empty"] = "error"
    """See `source.nulls`."""
    tables: FlatTables | None = None
    """How HDF5 files hold the same events; None: there is no such layout."""

    def columns_per(self, per: Literal["event", "particle"]) -> tuple[Column, ...]:
        """The columns with one row per event, or per particle, in slot order."""
        return tuple(column for column in self.columns if column.per == per)

    def column(self, name: str) -> Column:
        """The unit's column of that name."""
        return next(column for column in self.columns if column.name == name)

    def stored_fields(self, source: SourceColumn) -> tuple[str, ...]:
        """The numbers of an innermost list of this file column, in the files' order."""
        return source.stored or self.column(source.into).fields

    def source_column(self, name: str) -> SourceColumn:
        """The file column of that name."""
        return next(column for column in self.source_columns if column.name == name)

    def fields_hint(self, source: SourceColumn, width: int) -> str:
        """What to set for files whose innermost lists have ``width`` numbers."""
        key = f"source.fields.{source.name}"
        if width == len(source.also_seen):
            names = ", ".join(f'"{field}"' for field in source.also_seen)
            return f"if these are {', '.join(source.also_seen)}, say so: --set '{key}=[{names}]'"
        return f"name all of them, in order, with {key}"

    def with_all_stored(self) -> Workload:
        """The same workload, but with every number that the files' lists hold, in the files' order."""
        stored = {source.into: self.stored_fields(source) for source in self.source_columns if source.nesting}

        def moved(column: str, field: int) -> int:
            return stored[column].index(self.column(column).fields[field]) if column in stored else field

        return replace(
            self,
            columns=tuple(replace(one, fields=stored.get(one.name, one.fields)) for one in self.columns),
            rules=tuple(replace(rule, field=moved(rule.column, rule.field)) for rule in self.rules),
            depth=None,
            slant_depth=None,
        )

    def stored_as(self, source: SourceConfig) -> Workload:
        """This workload, read from files like those. Raises BadInputError that names the key and what it lacks."""
        lists = {column.name: column for column in self.source_columns if column.nesting}
        for name, stored in source.fields.items():
            key = f"source.fields.{name}"
            if name not in lists:
                raise BadInputError(f"{key}: the workload {self.name} has no such list; it has {', '.join(lists)}")
            missing = [field for field in self.column(lists[name].into).fields if field not in stored]
            if missing or len(set(stored)) != len(stored):
                wrong = f"lacks {', '.join(missing)}" if missing else "names a number twice"
                raise BadInputError(f"{key} = {list(stored)} {wrong}; name all numbers of a list, in order")
        return replace(
            self,
            source_columns=tuple(
                replace(column, stored=tuple(source.fields.get(column.name, ()))) for column in self.source_columns
            ),
            slant_depth=self.depth if source.depth_kind == "slant" else None,
            nulls=source.nulls,
        )


MUONS = Workload(
    name="muons",
    columns=(
        # A muon at depth: energy, and position relative to the shower axis in the plane across it.
        Column("muons", "particle", "<f4", ("energy_gev", "x_m", "y_m")),
        # The primary: energy, zenith angle, mass number, depth at which the bundle was recorded.
        Column("primary", "event", "<f4", ("energy_gev", "zenith_rad", "mass_a", "depth_m")),
        Column("primary_id", "event", "<u8", ("major", "minor")),
    ),
    source_columns=(
        SourceColumn("primary_major_id", 0, "primary_id", 0),
        SourceColumn("primary_minor_id", 0, "primary_id", 1),
        SourceColumn("primary", 1, "primary", also_seen=("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")),
        SourceColumn("muons", 2, "muons", also_seen=("energy_gev", "x_m", "y_m", "time_s")),
    ),
    rules=(
        ValueRule("primary", 0, minimum=1e-9),
        ValueRule("primary", 1, minimum=0.0),
        ValueRule("primary", 2, minimum=0.0),  # a photon has mass number 0
        ValueRule("primary", 3, minimum=0.0),
        ValueRule("muons", 0, minimum=float("-inf"), drop_unless_positive=True),
        ValueRule("muons", 1, minimum=float("-inf")),
        ValueRule("muons", 2, minimum=float("-inf")),
    ),
    depth=Depth("primary", depth=3, zenith=1),
    tables=FlatTables(
        events="primaries",
        particles="muons",
        counts="counts",
        ids=("primary_major_id", "primary_minor_id"),
        event_list="primary",
        particle_list="muons",
    ),
)

# Where an event came from; the decoder adds these to every workload.
SOURCE_COLUMNS = (
    Column("source_file", "event", "<i4", ("index_in_inventory",)),
    Column("source_row", "event", "<i8", ("row_in_file",)),
)

WORKLOADS = {workload.name: workload for workload in (MUONS,)}
