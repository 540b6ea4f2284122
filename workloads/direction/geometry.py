"""Detectors and their medium: the table of sensors beside the files of events, toy detectors, optical properties.

S sensors. Metres; z points up.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Medium:
    """Optical properties of what a detector stands in, the same everywhere."""

    phase_index: float
    """Refractive index for the Cherenkov angle."""
    group_index: float
    """Refractive index for the speed of light pulses."""
    scattering_m: float
    scattering_delay_ns: float
    absorption_m: float
    """Parameters λ, τ and λ_a of the Pandel function of the delay by scattering."""

    @property
    def cos_cherenkov(self) -> float:
        """Cosine of the Cherenkov angle."""
        return 1 / self.phase_index

    @property
    def sin_cherenkov(self) -> float:
        """Sine of the Cherenkov angle."""
        return sqrt(1 - self.cos_cherenkov**2)

    @property
    def cone_delay_ns_m(self) -> float:
        """Delay of a track's direct light behind the particle, a metre of distance to the track."""
        tangent = self.sin_cherenkov / self.cos_cherenkov
        return (self.group_index / self.sin_cherenkov - 1 / tangent) / LIGHT_SPEED_M_NS

    @property
    def point_delay_ns_m(self) -> float:
        """Delay of a point source's direct light, a metre of distance to the source."""
        return self.group_index / LIGHT_SPEED_M_NS

    @property
    def scattering_rate_per_ns(self) -> float:
        """Rate of the Gamma distribution of the delay by scattering; its shape is the light's way / scattering_m."""
        return 1 / self.scattering_delay_ns + LIGHT_SPEED_M_NS / (self.group_index * self.absorption_m)

    @property
    def reach_m(self) -> float:
        """Distance to which light of usual events is seen, 1.5 absorption lengths: 150 m in ice."""
        return self.absorption_m * 150 / 98

    def scaled(self, factor: float) -> Medium:
        """Return the medium in which light does the same if all lengths and times are multiplied by ``factor``."""
        lengths = (self.scattering_m, self.scattering_delay_ns, self.absorption_m)
        return Medium(self.phase_index, self.group_index, *(factor * length for length in lengths))


ICE = Medium(1.3195, 1.35634, 33.3, 557.0, 98.0)
"""Ice at the South Pole (AMANDA, astro-ph/0407044)."""

WATER = Medium(1.35, 1.38, 265.0, 4510.0, 60.0)
"""Deep sea water, blue light (ANTARES: absorption and effective scattering astro-ph/0412126, group velocity
arXiv:1110.5184). τ, which is known for ice, is that of ice times the ratios of scattering lengths and group indices."""

MEDIA: Mapping[str, Medium] = {"ice": ICE, "water": WATER}
"""Media by their names in tables of sensors."""


GEOMETRY_FILE = "sensor_geometry.csv"
"""Name of the table in a folder of events, as in Kaggle's "IceCube - Neutrinos in Deep Ice"."""

HEADER = ("sensor_id", "x", "y", "z")
MEDIUM = "medium"
"""Column of the table that a detector in another medium than ice has: the same word in each row."""

MOST_SENSORS = 2**15
"""Sensors that files can name: `sensor_id` is an int16."""

MOST_BYTES = 128 * MOST_SENSORS
"""Size of a table of that many sensors, with numbers as long as anybody writes them."""

FARTHEST_M = 1e6
"""Largest coordinate: a thousand kilometres, more than a detector has."""

_NEAR_M = 0.02
"""Largest distance between two notes of one sensor's position."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """Positions of sensors, by sensor id, and what is between them."""

    position_S3: npt.NDArray[np.float32]
    """(S, 3), m: row i is sensor i."""
    medium: Medium = ICE

    def __len__(self) -> int:
        return len(self.position_S3)

    def is_like(self, other: Geometry) -> bool:
        """Return True if the sensors agree in number, place and medium."""
        a_S3, b_S3 = self.position_S3, other.position_S3
        return self.medium == other.medium and len(a_S3) == len(b_S3) and np.allclose(a_S3, b_S3, rtol=0, atol=_NEAR_M)

    @property
    def extent_m(self) -> float:
        """Root mean square distance of the sensors from their mean, to two digits: 490 m of IceCube's.

        At least the medium's reach: in a smaller detector places and times of the light are as far apart as that.
        """
        extent_m = float(f"{np.sqrt(self.position_S3.astype(np.float64).var(0).sum()):.1e}")
        return max(extent_m, self.medium.reach_m)

    @property
    def centre_m(self) -> npt.NDArray[np.float64]:
        """Mean of the sensors in steps of half the extent: 0 if the origin is near it. (3,)."""
        step_m = self.extent_m / 2
        centre_3: npt.NDArray[np.float64] = np.rint(self.position_S3.astype(np.float64).mean(0) / step_m) * step_m
        return centre_3


def icecube_geometry() -> Geometry:
    """The 5,160 sensors of IceCube, 86 strings of 60; eight of the strings (DeepCore) are denser.

    Positions from graphnet-team/graphnet, data/geometry_tables/prometheus/icecube.parquet (Apache-2.0), with the origin
    at the detector's centre. String-major, as hex_geometry().
    """
    return read_geometry(Path(__file__).with_name("icecube_geometry.csv"))


def hex_geometry() -> Geometry:
    """Toy detector: a string in the middle and five rings of strings, 91 in all, as far apart as IceCube's.

    String-major: sensor i is number i % 60 of string i // 60, from the top.
    """
    steps = range(-5, 6)
    x_y = np.array([(125 * (i + j / 2), 125 * sqrt(0.75) * j) for i in steps for j in steps if abs(i + j) <= 5])
    z = 500 - 17.0 * np.arange(60)
    position_S3 = np.column_stack([np.repeat(x_y, len(z), axis=0), np.tile(z, len(x_y))])
    return Geometry(position_S3.astype(np.float32))


ARRAYS: Mapping[str, Callable[[], Geometry]] = {"icecube": icecube_geometry, "hex": hex_geometry}
"""Arrays that the simulator knows, by name."""


def write_geometry(path: Path, geometry: Geometry) -> None:
    """Write the table, completely or not at all. Values are read back as the same float32."""
    names = {medium: name for name, medium in MEDIA.items()}
    words = [] if geometry.medium == ICE else [names[geometry.medium]]
    rows = [",".join((*HEADER, *(MEDIUM for _ in words)))]
    # str() of a float32 has the digits that it needs; its format() has those of a float64.
    rows += [",".join(map(str, (number, *place, *words))) for number, place in enumerate(geometry.position_S3)]
    replace_file(path, "\n".join(rows) + "\n", durable=False, mode=AS_UMASK_SAYS)


def read_geometry(path: Path) -> Geometry:
    """Table of sensors, in any order of its rows.

    Raises BadInputError that names the file unless it is a text with the header `sensor_id,x,y,z` whose ids are
    0 to S - 1, each once, and whose coordinates are metres. A fifth column `medium` has one of the words of MEDIA.
    """
    types = {HEADER[0]: pa.int64(), **dict.fromkeys(HEADER[1:], pa.float64()), MEDIUM: pa.string()}
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
    if tuple(table.column_names) not in (HEADER, (*HEADER, MEDIUM)):
        found = printable(",".join(table.column_names), 80)
        raise BadInputError(
            f"{path}: its first line is {found!r}; expected {','.join(HEADER)}, and {MEDIUM} if not ice"
        )
    words = table[MEDIUM].unique().to_pylist() if MEDIUM in table.column_names else ["ice"]
    if len(words) != 1 or words[0] not in MEDIA:
        found = printable(", ".join(words[:3]), 80)
        raise BadInputError(f"{path}: its {MEDIUM} is {found!r}; expected the same in each row, {' or '.join(MEDIA)}")
    ids_S, *axes = (column.to_numpy() for column in table.columns[: len(HEADER)])
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
    return Geometry(position_S3[np.argsort(ids_S)].astype(np.float32), MEDIA[words[0]])


def read_equal_geometries(places: Sequence[Path], remedy: str) -> Geometry:
    """Return the sensors of these tables. Raises BadInputError, which ends with ``remedy``, if two of them differ."""
    first, *others = (read_geometry(place) for place in places)
    for place, other in zip(places[1:], others, strict=True):
        if not first.is_like(other):
            raise BadInputError(f"{places[0]} and {place} differ: {remedy}")
    return first


def write_geometry_beside(out: Path, geometry: Geometry) -> None:
    """Write the table into the folder, unless it is there. Raises BadInputError if there is another detector's."""
    path = out / GEOMETRY_FILE
    if not path.exists():
        write_geometry(path, geometry)
    elif not geometry.is_like(read_geometry(path)):
        raise BadInputError(f"{path}: it has other sensors, or another medium, than the files; choose another folder")


_BITS = 21
_FARTHEST_POSITION_M = (1 << (_BITS - 1)) / 100 - 1

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
