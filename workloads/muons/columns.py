"""Columns of the muon workload, the columns of its files, the values that they may have, and their depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.config import SourceConfig
from common.schema import Column, EventSchema, FlatTables, SourceColumn, ValueRule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from common.schema import UnitArrays

    Float64 = npt.NDArray[np.float64]


EARTH_RADIUS_M = 6_374_134.0
"""Radius of the ice surface from the Earth's centre (IceCube's MuonGun, Muonitron)."""


def slant_depth_m(cos_zenith: Float64, depth_m: Float64) -> Float64:
    """Return the path length in metres from the surface to ``depth_m`` vertical metres, on a round Earth.

    The zenith angle is the one at the detector. Source: Muonitron.
    """
    import numpy as np

    below_m = EARTH_RADIUS_M - depth_m
    along_m = cos_zenith * below_m
    # An order of operations that keeps digits: 2rd - d² is small against r², and the root is close to `along_m`.
    extra_m2 = 2.0 * EARTH_RADIUS_M * depth_m - depth_m**2
    return extra_m2 / (np.sqrt(extra_m2 + along_m**2) + along_m)


def vertical_depth_m(cos_zenith: Float64, slant_m: Float64) -> Float64:
    """Return the vertical depth in metres of a point ``slant_m`` along the track: the inverse of slant_depth_m."""
    import numpy as np

    across_m2 = slant_m**2 * (1.0 - cos_zenith**2)
    # r - sqrt(r² - across²), written without the difference of two large numbers.
    sagitta_m = across_m2 / (EARTH_RADIUS_M + np.sqrt(EARTH_RADIUS_M**2 - across_m2))
    return slant_m * cos_zenith + sagitta_m


@dataclass(frozen=True)
class VerticalDepth:
    """Conversion of depths along the track (`source.depth_kind`) to vertical ones; see FinishUnit."""

    column: str
    depth: int
    """Field index of the depth: metres."""
    zenith: int
    """Field index of the zenith angle: radians."""

    def __call__(self, arrays: UnitArrays, source: SourceConfig) -> None:
        """Replace slant depths by vertical ones, in place."""
        if source.depth_kind == "vertical":
            return
        import numpy as np  # the fetcher's and decoder's commands choose their number of threads before

        values = arrays.event_columns[self.column]
        cos_zenith = np.cos(values[:, self.zenith].astype(np.float64))
        values[:, self.depth] = vertical_depth_m(cos_zenith, values[:, self.depth].astype(np.float64))


MUONS = EventSchema(
    name="muons",
    columns=(
        # A muon at depth: energy, and position relative to the shower axis in the plane across it.
        Column("muons", "particle", "<f4", ("energy_gev", "x_m", "y_m")),
        # The primary: energy, zenith angle, mass number, depth at which the bundle was recorded.
        Column("primary", "event", "<f4", ("energy_gev", "zenith_rad", "mass_a", "depth_m")),
        Column("primary_id", "event", "<u8", ("major", "minor")),
    ),
    source_columns=(
        SourceColumn("primary_major_id", "primary_id", 0),
        SourceColumn("primary_minor_id", "primary_id", 1),
        SourceColumn("primary", "primary"),
        SourceColumn("muons", "muons"),
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
    physical=(
        ValueRule("primary", 0, minimum=0.1, maximum=1e13),  # the largest ever seen: 3e11 GeV
        ValueRule("primary", 1, minimum=0.0, maximum=3.1415930),  # π, rounded up above float32's
        ValueRule("primary", 2, minimum=0.0, maximum=300.0),
        ValueRule("primary", 3, minimum=0.0, maximum=2e5),  # a horizontal track to 2 km of depth has 160 km of ice
        ValueRule("muons", 0, minimum=0.0, maximum=1e13),
        ValueRule("muons", 1, minimum=-1e5, maximum=1e5),
        ValueRule("muons", 2, minimum=-1e5, maximum=1e5),
    ),
    finish_unit=VerticalDepth("primary", depth=3, zenith=1),
    identity="primary_id",  # all bundles of a shower together
    tables=FlatTables(
        events="primaries",
        particles="muons",
        counts="counts",
        ids=("primary_major_id", "primary_minor_id"),
        event_list="primary",
        particle_list="muons",
    ),
)
