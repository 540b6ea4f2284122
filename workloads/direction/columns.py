"""Columns of the direction workload, the columns of its files, and the values that they may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.config import SourceConfig
from common.schema import Column, EventSchema, RelativeField, SourceColumn, ValueRule

if TYPE_CHECKING:
    from common.schema import UnitArrays

CLASSICAL_FITS = (
    # Line fit with robust weights: direction of the source, point on the line, speed, median residual.
    *("line_x", "line_y", "line_z", "line_at_x_m", "line_at_y_m", "line_at_z_m", "line_speed_m_ns", "line_residual_m"),
    # Pandel fit of a track: direction of the source, point on the track, time there, ln likelihood a pulse.
    *("track_x", "track_y", "track_z", "track_at_x_m", "track_at_y_m", "track_at_z_m", "track_ns", "track_ln_l"),
    # Pandel fit of a point source of light: position, time, ln likelihood a pulse.
    *("vertex_x_m", "vertex_y_m", "vertex_z_m", "vertex_ns", "vertex_ln_l"),
    # Posterior of a cascade: mean direction of the source, the longer the better known; ln of its light in
    # photo-electrons; ln evidence a pulse.
    *("cascade_x", "cascade_y", "cascade_z", "cascade_ln_pe", "cascade_ln_l"),
)
"""Results of the classical fits of an event, in the order of their column. All 0: not computed.

Times are relative to the event's reference time, the median time of its pulses that are not auxiliary.
"""

UNKNOWN, CASCADE, TRACK = -1, 0, 1
"""Values of the column `topology`."""

MOST_NS = float(1 << 23)
"""Largest time, or earliest, of a pulse that float32 holds to half a nanosecond: eight milliseconds."""
MOST_CHARGE_PE = 1e7
"""Largest charge that fits and networks see; of times, those within ± MOST_NS. What they make of it is finite."""

_TWO_PI, _PI = 6.2831860, 3.1415930
"""2π and π, rounded up to a number that float32 can't exceed by rounding an allowed angle."""


@dataclass(frozen=True)
class GroupedBySensor:
    """Pulses of an event in the order of sensor and time, and the columns derived from that; see FinishUnit."""

    def __call__(self, arrays: UnitArrays, source: SourceConfig) -> None:
        """Sort the pulses of each event unless they are sorted; fill `opens_sensor` and `source_direction`."""
        from workloads.direction.grouping import group_by_sensor  # numpy: commands choose their threads before

        group_by_sensor(arrays)


DIRECTION = EventSchema(
    name="direction",
    columns=(
        # A pulse: time (only differences matter) and charge in photo-electrons.
        Column("pulses", "particle", "<f4", ("time_ns", "charge_pe")),
        Column("sensor", "particle", "<i2", ("sensor_id",)),
        # True for pulses of lower quality: no neighbouring sensor was hit within a microsecond.
        Column("auxiliary", "particle", "|b1", ("is_auxiliary",)),
        # True for the first pulse of each sensor of an event.
        Column("opens_sensor", "particle", "|b1", ("opens_sensor",)),
        Column("event_id", "event", "<i8", ("event_id",)),
        # Direction in which the neutrino's source lies: azimuth 0 to 2π, zenith 0 (from above) to π.
        Column("arrival", "event", "<f4", ("azimuth_rad", "zenith_rad")),
        # The same as a unit vector: (cos az sin zen, sin az sin zen, cos zen).
        Column("source_direction", "event", "<f4", ("source_x", "source_y", "source_z")),
        # Energy of the neutrino; 0: unknown.
        Column("true_energy", "event", "<f4", ("true_energy_gev",)),
        # TRACK, CASCADE or UNKNOWN.
        Column("topology", "event", "|i1", ("topology",)),
        # True for events added to the natural mixture: only branches that need more of their kind learn from them.
        Column("enriched", "event", "|b1", ("enriched",)),
        Column("classical_fits", "event", "<f4", CLASSICAL_FITS),
    ),
    source_columns=(
        SourceColumn("event_id", "event_id", 0),
        SourceColumn("azimuth", "arrival", 0),
        SourceColumn("zenith", "arrival", 1),
        SourceColumn("true_energy", "true_energy", 0),
        SourceColumn("topology", "topology", 0),
        SourceColumn("enriched", "enriched", 0),
        SourceColumn("classical_fits", "classical_fits"),
        SourceColumn("pulses.sensor_id", "sensor", 0),
        SourceColumn("pulses.time_ns", "pulses", 0),
        SourceColumn("pulses.charge_pe", "pulses", 1),
        SourceColumn("pulses.is_auxiliary", "auxiliary", 0),
    ),
    rules=(
        ValueRule("pulses", 0),
        ValueRule("pulses", 1, minimum=0.0),
        ValueRule("sensor", 0, minimum=0),
        ValueRule("arrival", 0, minimum=0.0, maximum=_TWO_PI),
        ValueRule("arrival", 1, minimum=0.0, maximum=_PI),
        ValueRule("true_energy", 0, minimum=0.0),
        ValueRule("topology", 0, minimum=UNKNOWN, maximum=TRACK),
    ),
    physical=(ValueRule("pulses", 0, minimum=-MOST_NS, maximum=MOST_NS),),
    relative=(RelativeField("pulses", 0, MOST_NS),),
    finish_unit=GroupedBySensor(),
    derived=("opens_sensor", "source_direction"),
    identity="event_id",
)

_TARGET = ("arrival", "source_direction")

WITHOUT_TARGET = replace(
    DIRECTION,
    columns=tuple(column for column in DIRECTION.columns if column.name not in _TARGET),
    source_columns=tuple(source for source in DIRECTION.source_columns if source.into not in _TARGET),
    rules=tuple(rule for rule in DIRECTION.rules if rule.column not in _TARGET),
    derived=("opens_sensor",),
)
"""Columns of events whose source nobody knows, to be predicted: files without `azimuth` and `zenith`.

Nothing can be trained or evaluated on such files: DIRECTION refuses them by name.
"""
