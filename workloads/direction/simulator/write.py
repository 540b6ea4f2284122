"""Data sets of simulated neutrino events, in the converted layout.

    OUT/sensor_geometry.csv
    OUT/events_00000.parquet
    OUT/events_00001.parquet

Same versions of numpy and pyarrow on the same kind of CPU: same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, replacing
from common.errors import BadInputError
from common.files.layout import schema_of, to_table, writer_options
from common.files.rows import RaggedRows
from common.unit_arrays import Array
from workloads.base.dataset import Written, prepare_folder, write_files
from workloads.direction.columns import CASCADE, CLASSICAL_FITS, DIRECTION, TRACK
from workloads.direction.geometry import GEOMETRY_FILE, write_geometry
from workloads.direction.simulator.plan import EventRows, EventsPlan, file_rows

OWN_FILE = re.compile(
    rf"(events_\d+\.parquet|batch_\d+\.parquet|train_meta\.parquet|{re.escape(GEOMETRY_FILE)})(\.part)?"
)
OWN_FOLDER = re.compile("train")
KAGGLE_FILE = re.compile(r"(batch_\d+|train_meta)\.parquet")
SIMULATED = b"icestream.simulated"
"""Key of the note in files with the names of Kaggle's: nobody else's are ever removed."""
_STORED = DIRECTION.with_all_stored()


def write_sample(folder: Path, events: int, seed: int) -> None:
    """Write one file of events of the natural mixture, with their classical fits: each model can learn from it."""
    from workloads.direction.fits.files import FitsJob, write_fits  # torch

    plan = EventsPlan(events, 1, seed)
    write_dataset(folder, plan, overwrite=True)
    path = folder / file_name(0)
    write_fits(FitsJob(path, path, plan.geometry))


def write_dataset(
    out: Path, plan: EventsPlan, *, overwrite: bool = False, on_file: Callable[[Written], None] | None = None
) -> Written:
    """Write all files; ``on_file`` gets the numbers of each once it is complete.

    Raises BadInputError if ``out`` holds files already; with ``overwrite``, if it holds any but those of this
    writer, which are removed first.
    """
    prepare(out, plan, overwrite=overwrite)
    return write_files(plan.num_files, lambda index: write_file(out / file_name(index), plan, index), on_file)


def prepare(out: Path, plan: EventsPlan, *, overwrite: bool) -> None:
    """Make ``out`` a directory with the table of sensors alone. Raises BadInputError."""
    if overwrite:
        _check_simulated(out)
    prepare_folder(
        out, overwrite=overwrite, own_file=OWN_FILE, own_folder=OWN_FOLDER, content="simulated neutrino events"
    )
    write_geometry(out / GEOMETRY_FILE, plan.geometry)


def _check_simulated(out: Path) -> None:
    """Check that files with names of Kaggle's were simulated. Raises BadInputError that names one that wasn't."""
    for path in sorted(out.rglob("*.parquet")):
        if KAGGLE_FILE.fullmatch(path.name):
            try:
                notes = pq.read_metadata(path).metadata or {}
            except (pa.ArrowException, OSError):
                notes = {}
            if SIMULATED not in notes:
                raise BadInputError(f"{path} was not simulated: choose another directory, or remove it yourself")


def file_name(file_index: int) -> str:
    """Name of one file."""
    return f"events_{file_index:05d}.parquet"


def write_file(path: Path, plan: EventsPlan, file_index: int) -> Written:
    """Write one file of the data set, completely or not at all."""
    schema = schema_of(_STORED)
    num_events = num_pulses = 0
    with replacing(path, durable=False, mode=AS_UMASK_SAYS, part=path.with_name(path.name + ".part")) as part:
        with pq.ParquetWriter(part, schema, **writer_options(schema, "zstd")) as writer:
            for rows in file_rows(plan, file_index):
                writer.write_table(table_of(rows), row_group_size=len(rows))
                num_events += len(rows)
                num_pulses += len(rows.events.sensor_P)
        num_bytes = part.stat().st_size
    return Written(1, num_events, num_pulses, num_bytes)


def table_of(rows: EventRows) -> pa.Table:
    """Rows in the converted layout. The classical fits are zeros: not computed."""
    events, truth = rows.events, rows.events.truth
    event_columns: dict[str, Array] = {
        "event_id": rows.event_id_E[:, None],
        "arrival": np.stack([truth.azimuth_E, truth.zenith_E], 1).astype(np.float32),
        "true_energy": truth.energy_gev_E.astype(np.float32)[:, None],
        "topology": np.where(truth.is_track_E, TRACK, CASCADE).astype(np.int8)[:, None],
        "enriched": rows.added_E[:, None],
        "classical_fits": np.zeros((len(rows), len(CLASSICAL_FITS)), np.float32),
    }
    pulse_columns: dict[str, Array] = {
        "pulses": np.stack([events.time_ns_P, events.charge_pe_P], 1),
        "sensor": events.sensor_P[:, None],
        "auxiliary": events.auxiliary_P[:, None],
    }
    nothing = pa.table({})
    pieces = [RaggedRows(events.counts_E, event_columns, pulse_columns, np.zeros(0, np.int64), nothing)]
    return to_table(pieces, _STORED)
