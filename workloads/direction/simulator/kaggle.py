"""Data sets of simulated neutrino events in the layout of Kaggle's "IceCube - Neutrinos in Deep Ice".

    OUT/sensor_geometry.csv
    OUT/train_meta.parquet
    OUT/train/batch_1.parquet
    OUT/train/batch_2.parquet

A batch has one row a pulse, in order of event and time; an event of `train_meta.parquet` names its first and last row.
Energy and topology have no column there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, replacing
from common.files.gather import offsets_of
from workloads.base.dataset import Written, write_files
from workloads.direction.simulator.plan import EventRows, EventsPlan, file_rows
from workloads.direction.simulator.write import SIMULATED, prepare

PULSES = {"sensor_id": "int16", "time": "int64", "charge": "float64", "auxiliary": "bool", "event_id": "int64"}
"""Columns of a batch; pandas reads the last one as its index."""

META_SCHEMA = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("event_id", pa.int64()),
        ("first_pulse_index", pa.int64()),
        ("last_pulse_index", pa.int64()),
        ("azimuth", pa.float64()),
        ("zenith", pa.float64()),
    ],
    metadata={SIMULATED: "1"},
)


def _pulses_schema() -> pa.Schema:
    """Columns of a batch, with the note by which pandas recognises its index."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": kind, "metadata": None}
        for name, kind in PULSES.items()
    ]
    note = {"index_columns": ["event_id"], "column_indexes": [], "columns": columns, "pandas_version": "1.5.3"}
    fields = [(name, pa.from_numpy_dtype(np.dtype(kind))) for name, kind in PULSES.items()]
    return pa.schema(fields, metadata={"pandas": json.dumps(note), SIMULATED.decode(): "1"})


PULSES_SCHEMA = _pulses_schema()


def write_kaggle_dataset(
    out: Path, plan: EventsPlan, *, overwrite: bool = False, on_file: Callable[[Written], None] | None = None
) -> Written:
    """Write all batches and the table of their events; the rest is as in write.write_dataset()."""
    prepare(out, plan, overwrite=overwrite)
    (out / "train").mkdir()
    meta = out / "train_meta.parquet"
    with (
        replacing(meta, durable=False, mode=AS_UMASK_SAYS, part=meta.with_name(meta.name + ".part")) as part,
        pq.ParquetWriter(part, META_SCHEMA) as writer,
    ):
        return write_files(plan.num_files, lambda index: write_batch(out, plan, index, writer), on_file)


def write_batch(out: Path, plan: EventsPlan, file_index: int, meta: pq.ParquetWriter) -> Written:
    """Write one batch, completely or not at all, and its events to ``meta``."""
    path = out / "train" / f"batch_{file_index + 1}.parquet"
    tables: list[pa.Table] = []
    num_pulses = 0
    with replacing(path, durable=False, mode=AS_UMASK_SAYS, part=path.with_name(path.name + ".part")) as part:
        with pq.ParquetWriter(part, PULSES_SCHEMA) as writer:
            for rows in file_rows(plan, file_index):
                tables.append(_meta_table(rows, file_index + 1, num_pulses))
                writer.write_table(_pulses_table(rows))
                num_pulses += len(rows.events.sensor_P)
        num_bytes = part.stat().st_size
    events = pa.concat_tables(tables)
    meta.write_table(events)
    return Written(1, len(events), num_pulses, num_bytes)


def _pulses_table(rows: EventRows) -> pa.Table:
    """Pulses of these events, in order of event and time."""
    events = rows.events
    event_P = np.repeat(np.arange(len(events)), events.counts_E)
    order_P = np.lexsort((events.time_ns_P, event_P))
    columns = (
        events.sensor_P[order_P],
        events.time_ns_P[order_P].astype(np.int64),
        events.charge_pe_P[order_P].astype(np.float64),
        events.auxiliary_P[order_P],
        rows.event_id_E[event_P],
    )
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=PULSES_SCHEMA)


def _meta_table(rows: EventRows, batch: int, num_before: int) -> pa.Table:
    """Events and the rows of their pulses, the last one included, in the batch."""
    offsets = num_before + offsets_of(rows.events.counts_E)
    truth = rows.events.truth
    columns = (
        np.full(len(rows), batch, np.int64),
        rows.event_id_E,
        offsets[:-1],
        offsets[1:] - 1,
        truth.azimuth_E,
        truth.zenith_E,
    )
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=META_SCHEMA)
