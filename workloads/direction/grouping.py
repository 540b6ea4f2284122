"""Pulses grouped by sensor, and unit vectors of directions, in a unit's arrays.

E events, P pulses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.unit_arrays import UnitArrays

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def group_by_sensor(arrays: UnitArrays) -> None:
    """Sort the pulses of each event by sensor and time unless they are; fill `opens_sensor`, `source_direction`."""
    columns = arrays.particle_columns
    sensor_P: npt.NDArray[Any] = columns["sensor"][:, 0]
    time_P: npt.NDArray[Any] = columns["pulses"][:, 0]
    opens_event_P = _opens_event(arrays.offsets)
    same_P = (sensor_P[1:] == sensor_P[:-1]) & ~opens_event_P[1:]
    falls_P = (sensor_P[1:] < sensor_P[:-1]) & ~opens_event_P[1:]
    if falls_P.any() or (same_P & (time_P[1:] < time_P[:-1])).any():
        event_P = np.repeat(np.arange(len(arrays.offsets) - 1), np.diff(arrays.offsets))
        order_P = np.lexsort((time_P, sensor_P, event_P))
        for name in ("pulses", "sensor", "auxiliary"):
            columns[name][:] = columns[name][order_P]
        same_P = (sensor_P[1:] == sensor_P[:-1]) & ~opens_event_P[1:]
    opens_P = columns["opens_sensor"][:, 0]
    opens_P[:1] = True
    np.logical_not(same_P, out=opens_P[1:])
    if "arrival" in arrays.event_columns:  # not of events whose source is to be predicted
        arrays.event_columns["source_direction"][:] = unit_vectors(arrays.event_columns["arrival"])


def unit_vectors(arrival_E2: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Unit vectors of directions. (E, 2) = [azimuth, zenith] in radians -> (E, 3)."""
    azimuth_E, zenith_E = arrival_E2.astype(np.float64).T
    sine_E = np.sin(zenith_E)
    return np.stack([np.cos(azimuth_E) * sine_E, np.sin(azimuth_E) * sine_E, np.cos(zenith_E)], 1)


def _opens_event(offsets: Int64) -> Bool:
    """True for the first pulse of each event. (E + 1,) -> (P,)."""
    opens_P = np.zeros(int(offsets[-1]), np.bool_)
    opens_P[offsets[:-1][np.diff(offsets) > 0]] = True
    return opens_P
