"""Sensors by their positions, for tables that name a sensor by the place where it is.

P pulses, S sensors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from workloads.direction.geometry import MOST_SENSORS, Geometry
from workloads.direction.importers.tables import first_bad

_BITS = 21
_FARTHEST_M = (1 << (_BITS - 1)) / 100 - 1
_NEAR_M = 0.02
"""Largest distance between two notes of one sensor's position."""

Int64 = npt.NDArray[np.int64]


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
        self._known_keys = np.empty(0, np.int64)
        self._known_ids = np.empty(0, np.int16)

    def ids(self, position_P3: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """Id of the sensor at each position, to 2 cm. (P, 3) -> (P,). Raises UnknownPosition."""
        impossible = first_impossible(position_P3)
        if impossible is not None:
            raise UnknownPosition(impossible)
        key_P = _keys(position_P3)
        place_P = self._places(key_P)
        new_P = self._known_keys[place_P] != key_P if len(self._known_keys) else np.ones(len(key_P), np.bool_)
        if new_P.any():
            self._learn(key_P, position_P3, np.flatnonzero(new_P))
            place_P = self._places(key_P)
        return self._known_ids[place_P]

    def _places(self, key_P: Int64) -> Int64:
        return np.minimum(np.searchsorted(self._known_keys, key_P), max(len(self._known_keys) - 1, 0))

    def _learn(self, key_P: Int64, position_P3: npt.NDArray[np.float32], new: Int64) -> None:
        keys, first = np.unique(key_P[new], return_index=True)
        _, ids = self._tree.query(position_P3[new[first]], distance_upper_bound=_NEAR_M)
        missing = ids == self._tree.n
        if missing.any():
            raise UnknownPosition(int(new[first[missing]].min()))
        keys, order = np.unique(np.concatenate([self._known_keys, keys]), return_index=True)
        self._known_keys = keys
        self._known_ids = np.concatenate([self._known_ids, ids.astype(np.int16)])[order]


def geometry_of(positions: Iterable[npt.NDArray[np.float32]]) -> Geometry:
    """Sensors at all positions, each once, in the order of x, y and z. Raises TooManySensors."""
    keys = np.empty(0, np.int64)
    found_S3 = np.empty((0, 3), np.float32)
    for position_P3 in positions:
        key_P = _keys(position_P3)
        sorted_P = np.sort(key_P)  # numpy sorts int64 much faster than it finds their order
        new = np.setdiff1d(sorted_P[np.diff(sorted_P, prepend=sorted_P[:1] - 1) != 0], keys, assume_unique=True)
        if len(new):
            some = np.flatnonzero(np.isin(key_P, new))
            _, first = np.unique(key_P[some], return_index=True)
            keys = np.concatenate([keys, new])
            found_S3 = np.concatenate([found_S3, position_P3[some[first]]])
        if len(keys) > MOST_SENSORS:
            raise TooManySensors
    return Geometry(found_S3[np.argsort(keys)])


def first_impossible(position_P3: npt.NDArray[np.float32]) -> int | None:
    """Place of the first pulse whose position is not finite, or farther than 10 km, or None."""
    bad_P3 = ~(np.abs(position_P3) <= _FARTHEST_M)
    return first_bad(np.any(bad_P3, axis=1)) if np.any(bad_P3) else None


def _keys(position_P3: npt.NDArray[np.float32]) -> Int64:
    """Position in centimetres as one number, in the order of x, y and z."""
    cell_P3 = np.rint(position_P3.astype(np.float64) * 100).astype(np.int64) + (1 << (_BITS - 1))
    key_P: Int64 = (cell_P3[:, 0] << 2 * _BITS) | (cell_P3[:, 1] << _BITS) | cell_P3[:, 2]
    return key_P
