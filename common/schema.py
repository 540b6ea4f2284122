"""Columns, units and dtypes, once: what stands in a source file and what stands in a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

SCHEMA_VERSION = 1
"""Part of the plan hash: raise it when the meaning or the order of a column changes."""


@dataclass(frozen=True)
class Column:
    """One named array of a unit: one row per event or per particle, ``fields`` wide."""

    name: str
    per: Literal["event", "particle"]
    dtype: str
    fields: tuple[str, ...]

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * len(self.fields)


@dataclass(frozen=True)
class Workload:
    """The ragged columns that a workload's reader fills and its model reads."""

    name: str
    columns: tuple[Column, ...]

    def columns_per(self, per: Literal["event", "particle"]) -> tuple[Column, ...]:
        """The columns with one row per event, or per particle, in slot order."""
        return tuple(column for column in self.columns if column.per == per)


MUONS = Workload(
    name="muons",
    columns=(
        # A muon at depth: energy, and position relative to the shower axis in the plane across it.
        Column("muons", "particle", "<f4", ("energy_gev", "x_m", "y_m")),
        # The primary: energy, zenith angle, mass number, depth at which the bundle was recorded.
        Column("primary", "event", "<f4", ("energy_gev", "zenith_rad", "mass_a", "depth_m")),
        Column("primary_id", "event", "<u8", ("major", "minor")),
    ),
)

# Where an event came from; the decoder adds these to every workload.
SOURCE_COLUMNS = (
    Column("source_file", "event", "<i4", ("index_in_inventory",)),
    Column("source_row", "event", "<i8", ("row_in_file",)),
)

WORKLOADS = {workload.name: workload for workload in (MUONS,)}
