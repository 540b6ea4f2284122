"""Parquet tables of others, and pulses from them: checked, cut if they are too many, ordered by sensor and time.

E events, P pulses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from common.files.parquet.footer import DamagedFooter, footer_digest, parse_footer
from common.files.rows import RaggedRows, offsets_of
from common.text import printable
from common.unit_arrays import Array
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.grouping import best_pulses

ROWS_AT_A_TIME = 1 << 18
"""Rows decoded at a time: 262,144, which keeps a sort of as many keys in the processor's cache."""

_BUFFER_BYTES = 1 << 20
"""Bytes read at a time of each column, since a row group may be a whole file."""

KINDS = {
    "integers": pa.types.is_integer,
    "numbers": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
    "bool": pa.types.is_boolean,
    "bool or integers": lambda kind: pa.types.is_boolean(kind) or pa.types.is_integer(kind),
}
"""Checks of a column's type by the words for it in an error."""

Numbers = npt.NDArray[Any]
"""Array of a type that is checked where it is read."""


def open_table(path: Path) -> pq.ParquetFile:
    """Opened Parquet file, whose row groups are read in pieces. Raises BadInputError that names the file."""
    with named_errors(path):
        parse_footer(path)
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Errors of a file that can't be read become BadInputErrors that name it."""
    try:
        yield
    except (DamagedFooter, pa.ArrowException, OSError) as error:
        reason = printable(str(error), 300)
        raise BadInputError(f"{path}: can't be read as Parquet ({reason}); get the file again") from None


def version_of(*paths: Path) -> str:
    """Text for the content of these tables. Raises BadInputError that names one that can't be read."""
    digests = []
    for path in paths:
        with named_errors(path):
            digests.append(footer_digest(path))
    return " with ".join(digests)


def column_names(path: Path) -> frozenset[str]:
    """Names of the file's columns; empty if it is no Parquet file, or damaged."""
    try:
        groups = parse_footer(path).row_groups
    except (DamagedFooter, OSError):
        return frozenset()
    return frozenset(column.path[0] for group in groups[:1] for column in group.columns)


def check_columns(schema: pa.Schema | pa.StructType, wanted: Mapping[str, str], where: str) -> None:
    """Raise BadInputError unless each wanted column is there and of its kind, one of KINDS."""
    names = [field.name for field in schema]
    for name, kind in wanted.items():
        if name not in names:
            raise BadInputError(f"{where}: it has no column {name!r}, but {printable(', '.join(names), 300)}")
        found = schema.field(name).type
        if not KINDS[kind](found):
            raise BadInputError(f"{where}: column {name!r} is of {printable(str(found), 80)}; expected {kind}")


def record_batches(
    file: pq.ParquetFile,
    path: Path,
    columns: Sequence[str],
    *,
    rows: int | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of these columns of all or some row groups, in order, with the errors of named_errors().

    ``rows`` are decoded at a time, ROWS_AT_A_TIME by default.
    """
    batches = file.iter_batches(rows or ROWS_AT_A_TIME, columns=list(columns), row_groups=groups, use_threads=False)
    while True:
        with named_errors(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def values_of(column: pa.Array | pa.ChunkedArray, where: str, first_row: int = 0) -> Numbers:
    """Numbers of a column without nulls. Raises BadInputError that names the row."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies also a single one
    if array.null_count:
        row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadInputError(f"{where}, row {row}: the value is null; expected a number")
    values: Numbers = array.to_numpy(zero_copy_only=False)
    return values


def first_bad(bad: npt.NDArray[np.bool_]) -> int | None:
    """Place of the first True, or None."""
    return int(np.argmax(bad)) if bad.any() else None


MOST_EVENTS = 1 << 23
"""Events of one batch that an import holds in memory; Kaggle's have 200,000."""

ANGLES = {"azimuth": ("2π", 2 * np.pi), "zenith": ("π", np.pi)}
"""Upper ends of the angles, as text and in radians."""

_ROUNDING_RAD = 3e-7
"""Excess of 2π in float32 over 2π."""

MOST_PULSES = 1 << 22
"""Pulses of one event that an import holds in memory; the largest events of IceCube have 178,000."""

_SENSOR_BITS = 15
_MOST_NS = float(1 << 62)
"""Largest time: 146 years. The difference of two such integers has 64 bits."""

_MOST_PE = float(np.finfo(np.float32).max)
_EXACT_NS = float(1 << 23)
"""Largest time that float32 holds to half a nanosecond."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pulses:
    """Pulses of whole events, in the file's order."""

    counts_E: Int64
    sensor_P: Numbers
    """Integers."""
    time_P: Numbers
    """Numbers, ns."""
    charge_P: Numbers
    """Numbers, photo-electrons."""
    auxiliary_P: Numbers
    """Bool."""


@dataclass(frozen=True)
class PlaceInFile:
    """Place of pulses in a file, for errors."""

    path: str
    first_row: int
    counts_E: Int64
    event_id_E: Int64 | None = None
    """None: not known yet."""
    row_is_event: bool = False
    """True if a row of the file is an event; else it is a pulse."""

    def of(self, pulse: int) -> str:
        """Row and event of a pulse."""
        event = int(np.searchsorted(np.cumsum(self.counts_E), pulse, "right"))
        row = f"{self.path}, row {self.first_row + (event if self.row_is_event else pulse)}"
        return row if self.event_id_E is None else f"{row}, event {self.event_id_E[event]}"


def check_pulses(pulses: Pulses, num_sensors: int, place: PlaceInFile) -> None:
    """Raise BadInputError that names the row for a sensor without position, or a time or charge that can't be."""
    if not len(pulses.sensor_P):
        return
    sensor_P = pulses.sensor_P
    if sensor_P.min() < 0 or sensor_P.max() >= num_sensors:
        row = first_bad((sensor_P < 0) | (sensor_P >= num_sensors))
        assert row is not None
        raise BadInputError(
            f"{place.of(row)}: sensor {sensor_P[row]} has no position; the geometry has the sensors 0 "
            f"to {num_sensors - 1}: use the table of this detector"
        )
    for what, values_P, least, most in (
        ("time", pulses.time_P, -_MOST_NS, _MOST_NS),
        ("charge", pulses.charge_P, 0.0, _MOST_PE),
    ):
        # Two passes without arrays of their own; false for NaN.
        if not (float(values_P.min()) >= least and float(values_P.max()) <= most):
            row = first_bad(~((values_P >= least) & (values_P <= most)))
            assert row is not None
            expected = f"a finite number, {'0' if least == 0 else f'{least:.2g}'} to {most:.2g}"
            raise BadInputError(f"{place.of(row)}: its {what} is {values_P[row]}; expected {expected}")


def rows_of_pulses(pulses: Pulses, event_columns: Mapping[str, Array], most: int) -> RaggedRows:
    """Rows of the workload's columns: pulses by sensor and time, those above ``most`` an event left out.

    ``event_columns`` are arrays (E, fields); those that imports never know are added.
    """
    time_P = _small_times(pulses)
    order_P = order_by_sensor_and_time(pulses.counts_E, pulses.sensor_P, time_P)
    counts_E = pulses.counts_E
    if len(counts_E) and counts_E.max() > most:
        kept_P = best_pulses(offsets_of(counts_E), time_P, pulses.auxiliary_P, most)
        order_P = order_P[kept_P[order_P]]
        counts_E = np.minimum(counts_E, most)
    pulses_P2 = np.empty((len(order_P), 2), np.float32)
    pulses_P2[:, 0] = time_P[order_P]
    pulses_P2[:, 1] = pulses.charge_P[order_P]
    events = len(counts_E)
    return RaggedRows(
        counts=counts_E,
        event_columns={
            "enriched": np.zeros((events, 1), np.bool_),
            "classical_fits": np.zeros((events, len(CLASSICAL_FITS)), np.float32),
            **event_columns,
        },
        particle_columns={
            "pulses": pulses_P2,
            "sensor": pulses.sensor_P[order_P].astype(np.int16, copy=False)[:, None],
            "auxiliary": pulses.auxiliary_P[order_P][:, None],
        },
        large=np.empty(0, np.int64),
        large_events=None,
        particles_dropped=len(time_P) - len(order_P),
    )


def order_by_sensor_and_time(counts_E: Int64, sensor_P: Numbers, time_P: Float32) -> Int64:
    """Places of the pulses in the order of event, sensor, time, and place if these are equal. (P,).

    Sorts keys that hold the place in their lowest bits: numpy sorts int64 in vector registers, seven times as fast as
    it finds the order of an array. For at most 2²⁴ pulses.
    """
    num_pulses = len(time_P)
    if not num_pulses:
        return np.empty(0, np.int64)
    bits = (num_pulses - 1).bit_length()
    assert 2 * bits + _SENSOR_BITS < 64
    mask = (1 << bits) - 1
    place_P = np.arange(num_pulses)
    sensor_P = sensor_P.astype(np.int64) + (np.repeat(np.arange(len(counts_E)), counts_E) << _SENSOR_BITS)
    falls_P = time_P[1:] < time_P[:-1]
    ends_E = offsets_of(counts_E)
    falls_P[ends_E[(ends_E > 0) & (ends_E < num_pulses)] - 1] = False
    if not falls_P.any():
        key_P: Int64 = (sensor_P << bits) | place_P
        key_P.sort()
        return key_P & mask
    # Places in the order of time; then the same with the rank in time in the place of the place.
    by_time_P: Int64 = (_sortable(time_P) << bits) | place_P
    by_time_P.sort()
    by_time_P &= mask
    key_P = (sensor_P[by_time_P] << bits) | place_P
    key_P.sort()
    order_P: Int64 = by_time_P[key_P & mask]
    return order_P


def _sortable(values: Float32) -> Int64:
    """Integers in the order of the floats: IEEE 754 orders by magnitude, which is inverted for negative ones."""
    raw = (values + np.float32(0)).view(np.int32)  # -0 becomes 0
    return np.where(raw < 0, raw ^ np.int32(0x7FFFFFFF), raw).astype(np.int64)


def _small_times(pulses: Pulses) -> Float32:
    """Times as float32, ns. Only differences matter: large ones are counted from the event's first pulse."""
    time_P, counts_E = pulses.time_P, pulses.counts_E
    if len(time_P) and max(-float(time_P.min()), float(time_P.max())) > _EXACT_NS:
        filled_E = counts_E > 0
        time_P = time_P if time_P.dtype.kind == "f" else time_P.astype(np.int64)  # holds the differences
        first_E = np.minimum.reduceat(time_P, offsets_of(counts_E)[:-1][filled_E])
        time_P = time_P - np.repeat(first_E, counts_E[filled_E])
    return time_P.astype(np.float32, copy=False)


def checked_angle(
    angle_E: Numbers, name: str, event_id_E: Int64, where: str, *, least: float = 0.0
) -> npt.NDArray[np.float64]:
    """Angle between ``least`` and 2π, if it is an azimuth, or 0 and π. Raises BadInputError that names the event."""
    angle_E = angle_E.astype(np.float64)
    text, most = ANGLES["azimuth" if name.endswith("azimuth") else "zenith"]
    bad = first_bad(~((angle_E >= least - _ROUNDING_RAD) & (angle_E <= most + _ROUNDING_RAD)))
    if bad is not None:
        expected = f"{'-π' if least else '0'} to {text} radians"
        raise BadInputError(f"{where}, event {event_id_E[bad]}: its {name} is {angle_E[bad]}; expected {expected}")
    return np.clip(angle_E, least, most)


def as_int64(values: Numbers, where: str) -> Int64:
    """Integers as int64. Raises BadInputError for one that it can't hold."""
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise BadInputError(f"{where}: {values.max()} is too large; expected numbers below 2⁶³")
    return values.astype(np.int64)
