"""Detectors and their ice: the table of sensors beside the files of events, toy detectors, optical properties.

S sensors. Metres; z points up, the origin is the detector's centre. Ice: speed of light, Cherenkov angle, scattering
and absorption (AMANDA, astro-ph/0407044).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from common.atomic_file import AS_UMASK_SAYS, replace_file
from common.errors import BadInputError
from common.text import printable

LIGHT_SPEED_M_NS = 0.299792458
PHASE_INDEX, GROUP_INDEX = 1.3195, 1.35634
"""Refractive indices of ice for the Cherenkov angle, and for the speed of light pulses."""

COS_CHERENKOV = 1 / PHASE_INDEX
SIN_CHERENKOV = sqrt(1 - COS_CHERENKOV**2)
TAN_CHERENKOV = SIN_CHERENKOV / COS_CHERENKOV

CONE_DELAY_NS_M = (GROUP_INDEX / SIN_CHERENKOV - 1 / TAN_CHERENKOV) / LIGHT_SPEED_M_NS
"""Delay of a track's direct light behind the particle, a metre of distance to the track."""
POINT_DELAY_NS_M = GROUP_INDEX / LIGHT_SPEED_M_NS
"""Delay of a point source's direct light, a metre of distance to the source."""

SCATTERING_DELAY_NS, SCATTERING_M, ABSORPTION_M = 557.0, 33.3, 98.0
"""Parameters τ, λ and λ_a of the Pandel function of the delay by scattering."""
SCATTERING_RATE_PER_NS = 1 / SCATTERING_DELAY_NS + LIGHT_SPEED_M_NS / (GROUP_INDEX * ABSORPTION_M)
"""Rate of the Gamma distribution of the delay by scattering; its shape is the light's way / SCATTERING_M."""


GEOMETRY_FILE = "sensor_geometry.csv"
"""Name of the table in a folder of events, as in Kaggle's "IceCube - Neutrinos in Deep Ice"."""

HEADER = ("sensor_id", "x", "y", "z")

MOST_SENSORS = 2**15
"""Sensors that files can name: `sensor_id` is an int16."""

MOST_BYTES = 128 * MOST_SENSORS
"""Size of a table of that many sensors, with numbers as long as anybody writes them."""

FARTHEST_M = 1e6
"""Largest coordinate: a thousand kilometres, more than a detector has."""

RINGS = 5
"""Rings of strings around the central string of the toy detector: 91 strings."""

SENSORS_A_STRING = 60
PITCH_M = 125.0
"""Distance between neighbouring strings, as IceCube's."""

SPACING_M = 17.0
"""Distance between neighbouring sensors of a string, as IceCube's."""

TOP_M = 500.0


@dataclass(frozen=True)
class Geometry:
    """Positions of sensors, by sensor id."""

    position_S3: npt.NDArray[np.float32]
    """(S, 3), m: row i is sensor i."""

    def __len__(self) -> int:
        return len(self.position_S3)


def icecube_geometry() -> Geometry:
    """The 5,160 sensors of IceCube, 86 strings of 60; eight of the strings (DeepCore) are denser.

    Positions from graphnet-team/graphnet, data/geometry_tables/prometheus/icecube.parquet (Apache-2.0), with the origin
    at the detector's centre. String-major, as hex_geometry().
    """
    return read_geometry(Path(__file__).with_name("icecube_geometry.csv"))


def hex_geometry() -> Geometry:
    """Toy detector: 91 strings of 60 sensors on a hexagonal lattice.

    String-major: sensor i is number i % 60 of string i // 60, from the top.
    """
    steps = range(-RINGS, RINGS + 1)
    cells = [(i, j) for i in steps for j in steps if abs(i + j) <= RINGS]
    x_y = np.array([(PITCH_M * (i + j / 2), PITCH_M * math.sqrt(0.75) * j) for i, j in cells])
    z = TOP_M - SPACING_M * np.arange(SENSORS_A_STRING)
    position_S3 = np.column_stack([np.repeat(x_y, len(z), axis=0), np.tile(z, len(x_y))])
    return Geometry(position_S3.astype(np.float32))


ARRAYS: Mapping[str, Callable[[], Geometry]] = {"icecube": icecube_geometry, "hex": hex_geometry}
"""Arrays that the simulator knows, by name: strings of SENSORS_A_STRING, string-major."""


def write_geometry(path: Path, geometry: Geometry) -> None:
    """Write the table, completely or not at all. Values are read back as the same float32."""
    rows = [",".join(HEADER)]
    # str() of a float32 has the digits that it needs; its format() has those of a float64.
    rows += [",".join(map(str, (sensor, *position_3))) for sensor, position_3 in enumerate(geometry.position_S3)]
    replace_file(path, "\n".join(rows) + "\n", durable=False, mode=AS_UMASK_SAYS)


def read_geometry(path: Path) -> Geometry:
    """Table of sensors, in any order of its rows.

    Raises BadInputError that names the file unless it is a text with the header `sensor_id,x,y,z` whose ids are
    0 to S - 1, each once, and whose coordinates are metres.
    """
    types = {HEADER[0]: pa.int64(), **dict.fromkeys(HEADER[1:], pa.float64())}
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise BadInputError(f"{path}: larger than {MOST_BYTES:,} bytes; no table of {MOST_SENSORS:,} sensors is")
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except (OSError, pa.ArrowException) as error:
        raise BadInputError(
            f"{path}: can't be read ({printable(str(error), 200)}); expected the table of sensors, {','.join(HEADER)}"
        ) from None
    if tuple(table.column_names) != HEADER:
        found = printable(",".join(table.column_names), 80)
        raise BadInputError(f"{path}: its first line is {found!r}; expected {','.join(HEADER)}")
    ids_S, *axes = (column.to_numpy() for column in table.columns)
    if not 0 < len(ids_S) <= MOST_SENSORS or not np.array_equal(np.sort(ids_S), np.arange(len(ids_S))):
        raise BadInputError(
            f"{path}: {len(ids_S):,} sensors, whose ids are not 0 to {len(ids_S) - 1}, each once; expected 1 to "
            f"{MOST_SENSORS:,} of them"
        )
    position_S3 = np.stack(axes, 1)
    far = np.flatnonzero(~np.all(np.abs(position_S3) <= FARTHEST_M, axis=1))
    if far.size:
        where = f"{path}: sensor {ids_S[far[0]]} is at {position_S3[far[0]].tolist()}"
        raise BadInputError(f"{where}; expected metres, at most {FARTHEST_M:g}")
    return Geometry(position_S3[np.argsort(ids_S)].astype(np.float32))


def read_equal_geometries(places: Sequence[Path], remedy: str) -> Geometry:
    """Return the sensors of these tables. Raises BadInputError, which ends with ``remedy``, if two of them differ."""
    first, *others = (read_geometry(place) for place in places)
    for place, other in zip(places[1:], others, strict=True):
        if not np.array_equal(first.position_S3, other.position_S3):
            raise BadInputError(f"{places[0]} and {place} differ: {remedy}")
    return first


def write_geometry_beside(out: Path, geometry: Geometry) -> None:
    """Write the table into the folder, unless it is there. Raises BadInputError if there is another detector's."""
    path = out / GEOMETRY_FILE
    if not path.exists():
        write_geometry(path, geometry)
    elif not np.array_equal(read_geometry(path).position_S3, geometry.position_S3):
        raise BadInputError(f"{path}: it has other sensors than the files to import; choose another folder")


_BITS = 21
_FARTHEST_POSITION_M = (1 << (_BITS - 1)) / 100 - 1
_NEAR_M = 0.02
"""Largest distance between two notes of one sensor's position."""

Name = Callable[[int], str]
"""Name of the place of a position in the files, for errors."""


class SensorsByPosition:
    """Table from positions to ids of sensors."""

    def __init__(self, geometry: Geometry) -> None:
        from scipy.spatial import KDTree  # a quarter of a second, which files of other layouts needn't wait for

        self._tree = KDTree(geometry.position_S3.astype(np.float64))

    def ids(self, position_3P: npt.NDArray[np.float32], name: Name) -> npt.NDArray[np.int16]:
        """Id of the sensor at each position, to 2 cm. (3, P) -> (P,). Raises BadInputError that names the place."""
        first, place_P = _distinct(position_3P, name)
        _, ids = self._tree.query(position_3P[:, first].T, distance_upper_bound=_NEAR_M)
        missing = ids == self._tree.n
        if missing.any():
            unknown = int(first[missing].min())
            raise BadInputError(
                f"{name(unknown)}: no sensor is at {position_3P[:, unknown].tolist()} m; use the table of sensors of "
                "this detector"
            )
        return np.asarray(ids.astype(np.int16)[place_P])


def geometry_at(positions: Iterable[tuple[npt.NDArray[np.float32], Name]], where: str) -> Geometry:
    """Return the sensors at all positions, (3, P) each, once, in the order of x, y and z. Raises BadInputError."""
    found_3S = np.empty((3, 0), np.float32)
    for position_3P, name in positions:
        found_3S = np.concatenate([found_3S, position_3P[:, _distinct(position_3P, name)[0]]], 1)
        found_3S = found_3S[:, np.unique(_position_keys(found_3S, name), return_index=True)[1]]
        if found_3S.shape[1] > MOST_SENSORS:
            raise BadInputError(f"{where}: more than {MOST_SENSORS:,} positions; expected positions of sensors")
    return Geometry(np.ascontiguousarray(found_3S.T))


def _distinct(position_3P: npt.NDArray[np.float32], name: Name) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """First place of each position, to 1 cm, and which of them each one is. Raises BadInputError."""
    # Arrow's hash table is five times as fast as a binary search.
    encoded = pa.array(_position_keys(position_3P, name)).dictionary_encode()
    first = np.empty(len(encoded.dictionary), np.int64)
    place_P = encoded.indices.to_numpy()
    first[place_P[::-1]] = np.arange(len(encoded))[::-1]
    return first, place_P


def _position_keys(position_3P: npt.NDArray[np.float32], name: Name) -> npt.NDArray[np.int64]:
    """Position in centimetres as one number, in the order of x, y and z. Raises BadInputError."""
    if position_3P.size and not max(-position_3P.min(), position_3P.max()) <= _FARTHEST_POSITION_M:  # false for NaN
        bad = int(np.argmax(np.any(~(np.abs(position_3P) <= _FARTHEST_POSITION_M), axis=0)))
        raise BadInputError(
            f"{name(bad)}: its position is {position_3P[:, bad].tolist()} m; expected metres, at most 10,000"
        )
    key_P = np.zeros(position_3P.shape[1], np.int64)
    for place_P in position_3P:
        # By int32: processors convert four times as many floats to it at once as to int64.
        cell_P = np.rint(place_P * np.float32(100)).astype(np.int32)
        key_P <<= _BITS
        key_P |= (cell_P + (1 << (_BITS - 1))).astype(np.int64)
    return key_P
