"""Detectors and their ice: the table of sensors beside the files of events, toy detectors, optical properties.

S sensors. Metres; z points up, the origin is the detector's centre. Ice: speed of light, Cherenkov angle, scattering
and absorption (AMANDA, astro-ph/0407044).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

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

    Raises BadInputError, with file and line, unless it is a text with the header `sensor_id,x,y,z` whose ids are
    0 to S - 1, each once, and whose coordinates are metres.
    """
    rows = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    found: dict[int, tuple[float, ...]] = {}
    try:
        header = ",".join(name.strip() for name in next(rows, ()))
        if header != ",".join(HEADER):
            raise BadInputError(f"{path}: its first line is {printable(header, 80)!r}; expected {','.join(HEADER)}")
        for row in filter(None, rows):
            where = f"{path}, line {rows.line_num}"
            sensor, position = _sensor(row, where)
            if sensor in found:
                raise BadInputError(f"{where}: sensor {sensor} a second time; each may occur once")
            found[sensor] = position
    except csv.Error as error:
        raise BadInputError(f"{path}, line {rows.line_num}: {error}; expected {','.join(HEADER)}") from error
    if not found:
        raise BadInputError(f"{path}: it has no sensor; expected a line for each after {','.join(HEADER)}")
    missing = next((sensor for sensor in range(len(found)) if sensor not in found), None)
    if missing is not None:
        raise BadInputError(
            f"{path}: {len(found):,} sensors, but none with id {missing}; expected the ids 0 to {len(found) - 1}"
        )
    return Geometry(np.array([found[sensor] for sensor in range(len(found))], np.float32))


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


def _text(path: Path) -> str:
    """Content of the file. Raises BadInputError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInputError(
            f"{path}: can't be read ({error.strerror}); expected the table of sensors, {','.join(HEADER)}"
        ) from error
    if len(content) > MOST_BYTES:
        raise BadInputError(f"{path}: larger than {MOST_BYTES:,} bytes; no table of {MOST_SENSORS:,} sensors is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: is not a text, byte {error.start}; expected {','.join(HEADER)}") from error


def _sensor(row: list[str], where: str) -> tuple[int, tuple[float, ...]]:
    """Id and position in a row. Raises BadInputError."""
    if len(row) != len(HEADER):
        raise BadInputError(f"{where}: {len(row)} values; expected {','.join(HEADER)}")
    try:
        sensor, position = int(row[0]), tuple(float(value) for value in row[1:])
    except ValueError:
        values = printable(",".join(row), 80)
        raise BadInputError(f"{where}: {values!r}; expected a whole number and three metres") from None
    if not 0 <= sensor < MOST_SENSORS:
        raise BadInputError(f"{where}: sensor {printable(row[0], 20)}; expected an id from 0 to {MOST_SENSORS - 1}")
    if not all(abs(value) <= FARTHEST_M for value in position):
        raise BadInputError(f"{where}: sensor {sensor} is at {position}; expected metres, at most {FARTHEST_M:g}")
    return sensor, position
