"""Sensors by their positions, for tables that name a sensor by the place where it is.

P pulses, S sensors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from workloads.direction.geometry import MOST_SENSORS, Geometry
from workloads.direction.importers.tables import first_bad

_BITS = 21
_FARTHEST_M = (1 << (_BITS - 1)) / 100 - 1
_NEAR_M = 0.02
"""Largest distance between two notes of one sensor's position."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class UnknownPosition(Exception):
    """Error for a position without a sensor: the place of the first such pulse."""

    def __init__(self, pulse: int) -> None:
        super().__init__(pulse)
        self.pulse = pulse


class TooManySensors(Exception):
    """Error for more positions than a file can name sensors."""


class SensorsByPosition:
    """Table from positions to ids of sensors, with a memory of the positions seen."""

    def __init__(self, geometry: Geometry) -> None:
        from scipy.spatial import KDTree

        self._tree = KDTree(geometry.position_S3.astype(np.float64))
        self._keys = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int16)

    def ids(self, position_3P: Float32) -> npt.NDArray[np.int16]:
        """Id of the sensor at each position, to 2 cm. (3, P) -> (P,). Raises UnknownPosition."""
        impossible = first_impossible(position_3P)
        if impossible is not None:
            raise UnknownPosition(impossible)
        key_P = _position_keys(position_3P)
        place_P = self._places(key_P)
        if place_P.null_count:
            self._learn(key_P, position_3P, np.flatnonzero(place_P.is_null().to_numpy(zero_copy_only=False)))
            place_P = self._places(key_P)
        found: npt.NDArray[np.int16] = self._ids[place_P.to_numpy()]
        return found

    def _places(self, key_P: Int64) -> pa.Int32Array:
        """Places of known keys, null for others. Arrow's hash table is five times as fast as a binary search."""
        return pc.index_in(pa.array(key_P), value_set=pa.array(self._keys))

    def _learn(self, key_P: Int64, position_3P: Float32, new: Int64) -> None:
        keys, first = np.unique(key_P[new], return_index=True)
        _, ids = self._tree.query(position_3P[:, new[first]].T, distance_upper_bound=_NEAR_M)
        missing = ids == self._tree.n
        if missing.any():
            raise UnknownPosition(int(new[first[missing]].min()))
        self._keys = np.concatenate([self._keys, keys])
        self._ids = np.concatenate([self._ids, ids.astype(np.int16)])


def geometry_of(positions: Iterable[Float32]) -> Geometry:
    """Sensors at all positions (3, P), each once, in the order of x, y and z. Raises TooManySensors."""
    keys = np.empty(0, np.int64)
    found_3S = np.empty((3, 0), np.float32)
    for position_3P in positions:
        key_P = _position_keys(position_3P)
        new = np.setdiff1d(pc.unique(pa.array(key_P)).to_numpy(), keys)
        if len(new):
            some = np.flatnonzero(np.isin(key_P, new))
            _, first = np.unique(key_P[some], return_index=True)
            keys = np.concatenate([keys, new])
            found_3S = np.concatenate([found_3S, position_3P[:, some[first]]], 1)
        if len(keys) > MOST_SENSORS:
            raise TooManySensors
    return Geometry(np.ascontiguousarray(found_3S[:, np.argsort(keys)].T))


def first_impossible(position_3P: Float32) -> int | None:
    """Place of the first pulse whose position is not finite, or farther than 10 km, or None."""
    if not position_3P.size or max(-position_3P.min(), position_3P.max()) <= _FARTHEST_M:  # false for NaN
        return None
    return first_bad(np.any(~(np.abs(position_3P) <= _FARTHEST_M), axis=0))


def _position_keys(position_3P: Float32) -> Int64:
    """Position in centimetres as one number, in the order of x, y and z."""
    key_P = np.zeros(position_3P.shape[1], np.int64)
    for place_P in position_3P:
        # By int32: processors convert four times as many floats to it at once as to int64.
        cell_P = np.rint(place_P * np.float32(100)).astype(np.int32)
        key_P <<= _BITS
        key_P |= (cell_P + (1 << (_BITS - 1))).astype(np.int64)
    return key_P
