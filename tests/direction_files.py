"""Files of neutrino events in the converted layout, as tests need them. E events, P pulses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.layout import schema_of, to_table, writer_options
from common.files.rows import RaggedRows
from common.schema import UnitArrays
from icestream.verbs import FrontDoor
from workloads.direction.columns import CLASSICAL_FITS, DIRECTION

STORED = DIRECTION.with_all_stored()


def event_rows(counts: Sequence[int], *, first: int = 0, seed: int = 0, **columns: Any) -> RaggedRows:
    """Events with so many pulses each, ids ``first``, ``first`` + 1, …; ``columns`` replace event columns by name."""
    counts_E = np.array(counts, np.int64)
    num_events, num_pulses = len(counts_E), int(counts_E.sum())
    random = np.random.default_rng([seed, first])
    event_P = np.repeat(np.arange(num_events), counts_E)
    sensor_P, time_P = random.integers(0, 5160, num_pulses), random.uniform(9000, 14000, num_pulses)
    order_P = np.lexsort((time_P, sensor_P, event_P))
    zenith_E = np.arccos(random.uniform(-1, 1, num_events))
    event_columns = {
        "event_id": first + np.arange(num_events)[:, None],
        "arrival": np.stack([random.uniform(0, 6.28, num_events), zenith_E], 1).astype(np.float32),
        "true_energy": random.uniform(1e2, 1e5, (num_events, 1)).astype(np.float32),
        "topology": random.integers(0, 2, (num_events, 1)).astype(np.int8),
        "enriched": np.zeros((num_events, 1), np.bool_),
        "classical_fits": np.zeros((num_events, len(CLASSICAL_FITS)), np.float32),
    }
    for name, values in columns.items():
        event_columns[name] = np.asarray(values, event_columns[name].dtype).reshape(num_events, -1)
    pulse_columns = {
        "pulses": np.stack([time_P[order_P], random.uniform(0.2, 3, num_pulses)], 1).astype(np.float32),
        "sensor": sensor_P[order_P, None].astype(np.int16),
        "auxiliary": random.random((num_pulses, 1)) < 0.5,
    }
    return RaggedRows(counts_E, event_columns, pulse_columns, np.zeros(0, np.int64), pa.table({}))


def write_direction_file(path: Path, rows: RaggedRows, *, row_group_rows: int = 1000) -> Path:
    """Parquet file of these events."""
    schema = schema_of(STORED)
    with pq.ParquetWriter(path, schema, **writer_options(schema, "zstd")) as writer:
        writer.write_table(to_table([rows], STORED), row_group_size=row_group_rows)
    return path


def direction_arrays(folder: Path, counts: Sequence[int]) -> UnitArrays:
    """Events with so many pulses each, as a decoder hands them on."""
    return read_arrays(write_direction_file(folder / "arrays.parquet", event_rows(counts)))


def read_arrays(path: Path) -> UnitArrays:
    """All events of a file, as a decoder hands them on."""
    front = FrontDoor()
    settings = front.file_settings([str(path)], toml=None, assignments=())
    with front.each_unit(DIRECTION.stored_as(settings.source), settings) as units:
        return next(units).arrays
