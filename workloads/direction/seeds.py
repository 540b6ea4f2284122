"""Work of `icestream seeds`: copies of files in the converted layout with their column `classical_fits` filled.

Several files at a time, each in its own process.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from common.atomic_file import part_of_one_writer
from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import plan_file
from common.files.layout import schema_of, writer_options
from common.files.parquet.columns import lists_of
from common.files.parquet.footer import footer_digest
from common.slow_progress import SlowProgress
from workloads.base.dataset import Written, in_processes, write_tables
from workloads.direction.columns import DIRECTION
from workloads.direction.fits import classical_fits
from workloads.direction.foreign_tables import named_errors, open_parquet
from workloads.direction.geometry import (
    GEOMETRY_FILE,
    ICE,
    Geometry,
    read_equal_geometries,
    read_geometry,
    write_geometry_beside,
)

_STORED = DIRECTION.with_all_stored()
_FITS = "classical_fits"
_STAMP = b"icestream.seeds"
"""Key of the note in an output that says from what it was made."""
_VERSION = 3
"""Version of the fits, to be raised when those of the same pulses change."""


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
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None
    with named_errors(path):
        found = pq.read_schema(path)
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
            f"{job.target} exists, and was not made from {job.source} as it is by this version: choose another folder, "
            "or overwrite it with --force"
        )
    return True


def write_fits(job: FitsJob) -> Written:
    """Write the target, completely or not at all: the source's rows, row groups and columns, with the fits.

    Raises BadInputError that names the file.
    """
    with open_parquet(job.source) as source:
        schema = source.schema_arrow
        notes = {key: text for key, text in (schema.metadata or {}).items() if key != _STAMP}
        schema = schema.with_metadata(notes | {_STAMP: _stamp(job)})
        tables, part = _with_fits(source, schema, job), part_of_one_writer(job.target)
        return write_tables(job.target, schema, tables, None, part=part, **writer_options(schema, "zstd"))


def _stamp(job: FitsJob) -> bytes:
    """Note for what the fits are made from: the source, the sensors and the medium. Raises BadInputError."""
    with named_errors(job.source):
        digest = footer_digest(job.source)
    sensors = hashlib.blake2b(job.geometry.position_S3.tobytes(), digest_size=16).hexdigest()
    medium = "" if job.geometry.medium == ICE else f" in {job.geometry.medium}"
    return f"fits {_VERSION} of {digest} with sensors {sensors}{medium}".encode()


def _with_fits(source: pq.ParquetFile, schema: pa.Schema, job: FitsJob) -> Iterator[tuple[pa.Table, int, int]]:
    """Yield row groups with their fits, and the numbers of events and pulses. Raises BadInputError naming the file."""
    place = schema.get_field_index(_FITS)
    for group in range(source.num_row_groups):
        with named_errors(job.source):
            table = source.read_row_group(group, use_threads=False)
        try:
            fits_EF, num_pulses = _fits(table, job.geometry)
        except BadInputError as error:
            raise BadInputError(f"{job.source}: {error}") from None
        lists = lists_of(fits_EF, schema.field(place).type)
        yield table.set_column(place, schema.field(place), lists), len(table), num_pulses


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
    fits_EF = classical_fits(
        pulses.field("sensor_id").to_numpy(),
        time_P,
        charge_P,
        pulses.field("is_auxiliary").to_numpy(zero_copy_only=False),
        offsets_E1 - offsets_E1[0],
        geometry,
    )
    return fits_EF, len(pulses)


def run_seeds(files: Sequence[Path], out: Path, geometry_file: Path | None, processes: int, *, force: bool) -> str:
    """Summary of what was written. Files that can't be used are reported, and raise BadInputError at the end."""
    started_s = time.perf_counter()
    geometry = _geometry(files, geometry_file)
    jobs = _jobs(files, out, geometry)
    out.mkdir(parents=True, exist_ok=True)
    write_geometry_beside(out, geometry)
    bad: list[str] = []

    def report(error: BadInputError) -> None:
        if len(jobs) == 1:
            raise error
        bad.append(str(error))
        click.echo(f"not done: {error}", err=True)

    waiting: list[FitsJob] = []
    num_events = 0
    for job in jobs:
        try:
            if not force and is_done(job):
                click.echo(f"{job.target} is there: skipped", err=True)
                continue
            num_events += check_file(job.source)
        except BadInputError as error:
            report(error)
        else:
            waiting.append(job)
    processes = min(processes, len(waiting))
    torch.set_num_threads(1)
    total = Written()
    with SlowProgress("fitting: events", num_events) as progress:
        for result in in_processes(write_fits, waiting, processes):
            try:
                written = result()
            except BadInputError as error:
                report(error)
            else:
                total += written
                progress.advance(written.num_events)
    if bad:
        raise BadInputError(f"{len(bad)} of {len(jobs)} files were not done; the first: {bad[0]}")
    rate = total.num_events / max(time.perf_counter() - started_s, 1e-9)
    skipped = f", {len(jobs) - len(waiting):,} were there" if len(waiting) < len(jobs) else ""
    return (
        f"{out}: {total.num_events:,} events, {total.num_particles:,} pulses in {total.num_files:,} files"
        f"{skipped}; {rate:,.0f} events/s in {max(processes, 1)} {'process' if processes < 2 else 'processes'}"
    )


def _geometry(files: Sequence[Path], geometry_file: Path | None) -> Geometry:
    """Table of sensors: the named one, else that beside the files. Raises BadInputError."""
    if geometry_file is not None:
        return read_geometry(geometry_file)
    places = [folder / GEOMETRY_FILE for folder in dict.fromkeys(file.parent for file in files)]
    for place in places:
        if not place.exists():
            raise BadInputError(
                f"no {GEOMETRY_FILE} (positions of the sensors) in {place.parent}: copy it there, or name it with "
                "--geometry"
            )
    return read_equal_geometries(places, "do the files of one detector at a time")


def _jobs(files: Sequence[Path], out: Path, geometry: Geometry) -> list[FitsJob]:
    """One job a file. Raises BadInputError for outputs that are inputs, or of the same name."""
    sources: dict[Path, Path] = {}
    for file in files:
        target = out / f"{file.stem}.parquet"
        if target in sources:
            raise BadInputError(f"{sources[target]} and {file} would both become {target}: use different folders")
        if target.exists() and target.samefile(file):
            raise BadInputError(f"{file} would be replaced by itself: name another folder with -o")
        sources[target] = file
    return [FitsJob(source, target, geometry) for target, source in sources.items()]
