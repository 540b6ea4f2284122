"""Pulses as GraphNeT's tables name them.

E events, P pulses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.files.rows import RaggedRows
from common.printable import printable
from common.unit_arrays import Array
from workloads.direction.importers.pulses import PlaceInFile, Pulses, check_pulses, rows_of_pulses
from workloads.direction.importers.sensors import SensorsByPosition, UnknownPosition, first_impossible
from workloads.direction.importers.tables import Numbers

EVENT = "event_no"

_POSITIONS = (("dom_x", "dom_y", "dom_z"), ("sensor_pos_x", "sensor_pos_y", "sensor_pos_z"), ("x", "y", "z"))
_TIMES = ("dom_time", "t", "time")
"""Names of a pulse's position and time; the first that a table has is read."""

_QUALITIES = ("hlc", "auxiliary")
"""`hlc` is 0 for a pulse of lower quality, `auxiliary` is true."""


@dataclass(frozen=True)
class PulseNames:
    """Names of the columns of one table's pulses."""

    position: tuple[str, str, str]
    time: str
    charge: str | None
    """None: every pulse is one photo-electron."""
    quality: str | None
    """None: no pulse is auxiliary."""

    @property
    def kinds(self) -> dict[str, str]:
        """Columns to read, and the kinds of their types."""
        kinds = dict.fromkeys([*self.position, self.time], "numbers")
        kinds |= {self.charge: "numbers"} if self.charge else {}
        return kinds | ({self.quality: "bool or integers"} if self.quality else {})


@dataclass(frozen=True)
class ForeignEvents:
    """Consecutive whole events of a table."""

    first_row: int
    """Row of the first pulse, or of the first event where a row is an event."""
    counts_E: npt.NDArray[np.int64]
    event_columns: Mapping[str, Array]
    pulse_columns: Mapping[str, Numbers]
    """Columns of PulseNames.kinds, (P,)."""
    row_is_event: bool

    def place(self, path: str) -> PlaceInFile:
        """Place of the pulses, for errors."""
        ids_E = self.event_columns["event_id"][:, 0].astype(np.int64)
        return PlaceInFile(path, self.first_row, self.counts_E, ids_E, self.row_is_event)


def pulse_names(columns: Collection[str]) -> PulseNames | None:
    """Names of the pulses that a table with these columns has, or None."""
    position = next((names for names in _POSITIONS if set(names) <= set(columns)), None)
    time = next((name for name in _TIMES if name in columns), None)
    if position is None or time is None:
        return None
    quality = next((name for name in _QUALITIES if name in columns), None)
    return PulseNames(position, time, "charge" if "charge" in columns else None, quality)


def check_has_pulses(columns: Collection[str], where: str) -> PulseNames:
    """Names of the table's pulses. Raises BadInputError if it has none."""
    names = pulse_names(columns)
    if names is None:
        known = "; ".join(", ".join(one) for one in _POSITIONS)
        raise BadInputError(
            f"{where}: it has no position or no time of the pulses, but {printable(', '.join(columns), 300)}; expected "
            f"a position ({known}) and a time ({', '.join(_TIMES)})"
        )
    return names


def positions_of(names: PulseNames, columns: Mapping[str, Numbers]) -> npt.NDArray[np.float32]:
    """Positions of the pulses' sensors, m. (3, P)."""
    return np.stack([columns[name].astype(np.float32) for name in names.position])


def possible_positions(
    names: PulseNames, columns: Mapping[str, Numbers], place: PlaceInFile
) -> npt.NDArray[np.float32]:
    """The same. Raises BadInputError that names the row of one that can't be."""
    position_3P = positions_of(names, columns)
    bad = first_impossible(position_3P)
    if bad is not None:
        raise BadInputError(
            f"{place.of(bad)}: its position is {position_3P[:, bad].tolist()} m; expected metres, at most 10,000"
        )
    return position_3P


def rows_of_events(
    events: ForeignEvents, names: PulseNames, sensors: SensorsByPosition, num_sensors: int, path: str, most: int
) -> RaggedRows:
    """Rows of the workload's columns. Raises BadInputError that names the row."""
    columns = events.pulse_columns
    place = events.place(path)
    position_3P = positions_of(names, columns)
    try:
        sensor_P = sensors.ids(position_3P)
    except UnknownPosition as error:
        raise BadInputError(
            f"{place.of(error.pulse)}: no sensor is at {position_3P[:, error.pulse].tolist()} m; use the table of "
            "sensors of this detector"
        ) from None
    num_pulses = len(sensor_P)
    quality = columns[names.quality] if names.quality else None
    pulses = Pulses(
        events.counts_E,
        sensor_P,
        columns[names.time],
        columns[names.charge] if names.charge else np.ones(num_pulses, np.float32),
        np.zeros(num_pulses, np.bool_) if quality is None else _is_auxiliary(names, quality),
    )
    check_pulses(pulses, num_sensors, place)
    return rows_of_pulses(pulses, events.event_columns, most)


def _is_auxiliary(names: PulseNames, quality_P: Numbers) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = quality_P == 0 if names.quality == "hlc" else quality_P != 0
    return found
