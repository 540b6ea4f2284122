"""Classical fits of files in the converted layout: a copy of each file with its column `classical_fits` filled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.config import StreamConfig
from common.errors import BadInputError
from common.files.layout import schema_of, writer_options
from common.files.parquet.footer import DamagedFooter, footer_digest
from common.files.whole_file import plan_file
from workloads.base.dataset import Written
from workloads.direction.columns import DIRECTION
from workloads.direction.fits.classical import classical_fits
from workloads.direction.geometry import Geometry

_STORED = DIRECTION.with_all_stored()
_FITS = "classical_fits"
_STAMP = b"icestream.seeds"
"""Key of the note in an output that says from what it was made."""


@dataclass(frozen=True)
class FitsJob:
    """One file to do."""

    source: Path
    target: Path
    geometry: Geometry


def check_file(path: Path) -> int:
    """Events of a file in the converted layout. Raises BadInputError that names the file, if it is none."""
    try:
        footer, _ = plan_file(path, _STORED, StreamConfig(shuffle=False))  # checks the sizes that the file claims
        found = pq.read_schema(path)
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None
    except (OSError, pa.ArrowException) as error:
        raise BadInputError(f"{path}: can't be read as Parquet ({error})") from None
    for field in schema_of(_STORED):
        if field.name not in found.names or not found.field(field.name).equals(field):
            raise BadInputError(
                f"{path}: not in the converted layout (column {field.name}, expected {field.type}): "
                "write it with `icestream convert` or `icestream simulate` first"
            )
    return footer.rows


def is_done(job: FitsJob) -> bool:
    """True if the output is there, made from the source as it is. Raises BadInputError if it is something else."""
    if not job.target.exists():
        return False
    check_file(job.target)
    if (pq.read_metadata(job.target).metadata or {}).get(_STAMP) != _stamp(job):
        raise BadInputError(
            f"{job.target} exists, and was not made from {job.source} as it is: choose another folder, or overwrite it "
            "with --force"
        )
    return True


def write_fits(job: FitsJob) -> Written:
    """Write the target, completely or not at all: the source's rows, row groups and columns, with the fits.

    Raises BadInputError that names the file.
    """
    with replacing(job.target, durable=False, mode=AS_UMASK_SAYS, part=part_of_one_writer(job.target)) as part:
        try:
            events, pulses = _write(job, part)
        except BadInputError as error:
            raise BadInputError(f"{job.source}: {error}") from None
        except pa.ArrowException as error:
            raise BadInputError(f"{job.source}: can't be read as Parquet ({error})") from None
        return Written(1, events, pulses, part.stat().st_size)


def _stamp(job: FitsJob) -> bytes:
    """Note for what the fits are made from: the source and the positions of the sensors. Raises BadInputError."""
    try:
        digest = footer_digest(job.source)
    except (DamagedFooter, OSError) as error:
        raise BadInputError(f"{job.source}: can't be read as Parquet ({error})") from None
    sensors = hashlib.blake2b(job.geometry.position_S3.tobytes(), digest_size=16).hexdigest()
    return f"{digest} with sensors {sensors}".encode()


def _write(job: FitsJob, part: Path) -> tuple[int, int]:
    """Numbers of events and pulses written."""
    events = pulses = 0
    with pq.ParquetFile(job.source, page_checksum_verification=True) as source:
        schema = source.schema_arrow
        notes = {key: text for key, text in (schema.metadata or {}).items() if key != _STAMP}
        schema = schema.with_metadata(notes | {_STAMP: _stamp(job)})
        with pq.ParquetWriter(part, schema, **writer_options(schema, "zstd")) as writer:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group, use_threads=False)
                fits_E21, num_pulses = _fits(table, job.geometry)
                place = schema.get_field_index(_FITS)
                writer.write_table(table.set_column(place, schema.field(place), _as_lists(fits_E21, schema)))
                events, pulses = events + len(table), pulses + num_pulses
    return events, pulses


def _fits(table: pa.Table, geometry: Geometry) -> tuple[npt.NDArray[np.float32], int]:
    """Fits of the events of a table, and its number of pulses. Raises BadInputError for values that are none."""
    lists = table["pulses"].combine_chunks()
    pulses = lists.flatten()
    offsets_E1 = lists.offsets.to_numpy().astype(np.int64)
    time_P, charge_P = (pulses.field(name).to_numpy() for name in ("time_ns", "charge_pe"))
    for name, values_P in (("time_ns", time_P), ("charge_pe", charge_P)):
        if not np.isfinite(values_P).all():
            event = int(np.searchsorted(offsets_E1 - offsets_E1[0], np.flatnonzero(~np.isfinite(values_P))[0], "right"))
            raise BadInputError(
                f"event {table['event_id'][event - 1]}: pulses.{name} is {values_P[~np.isfinite(values_P)][0]}; "
                "expected finite numbers"
            )
    fits_E21 = classical_fits(
        pulses.field("sensor_id").to_numpy(),
        time_P,
        charge_P,
        pulses.field("is_auxiliary").to_numpy(zero_copy_only=False),
        offsets_E1 - offsets_E1[0],
        geometry,
    )
    return fits_E21, len(pulses)


def _as_lists(fits_E21: npt.NDArray[np.float32], schema: pa.Schema) -> pa.ListArray:
    offsets = np.arange(len(fits_E21) + 1, dtype=np.int32) * np.int32(fits_E21.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(fits_E21.reshape(-1)), type=schema.field(_FITS).type)
