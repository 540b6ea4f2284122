"""A workload with columns that its decoder derives, and files of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.config import SourceConfig
from common.schema import Column, EventSchema, SourceColumn, UnitArrays, ValueRule


@dataclass(frozen=True)
class ChargesSummed:
    """Number of the first particle of each event, and its sum of charges."""

    factor: float = 2.0

    def __call__(self, arrays: UnitArrays, source: SourceConfig) -> None:
        del source
        charge = arrays.particle_columns["hits"][:, 0].astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(charge)])[arrays.offsets]
        arrays.event_columns["total"][:, 0] = self.factor * np.diff(sums)
        arrays.particle_columns["opens"][:] = False
        arrays.particle_columns["opens"][arrays.offsets[:-1][np.diff(arrays.offsets) > 0]] = True


DERIVED = EventSchema(
    name="derived",
    columns=(
        Column("opens", "particle", "|b1", ("flag",)),
        Column("hits", "particle", "<f4", ("charge",)),
        Column("total", "event", "<f8", ("charge",)),
        Column("number", "event", "<i8", ("id",)),
    ),
    source_columns=(SourceColumn("id", "number", 0), SourceColumn("charge", "hits", 0)),
    rules=(ValueRule("hits", 0, minimum=0.0),),
    finish_unit=ChargesSummed(),
    derived=("opens", "total"),
    identity="number",
)


def charges_of(number: int) -> list[float]:
    """Charges of the event with that id, small whole numbers: their sums are exact."""
    return [float(number % 7 + i) for i in range(number % 4)]


def write_derived(path: Path, ids: range, rows_per_group: int = 10) -> Path:
    charges = pa.array([charges_of(number) for number in ids], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "charge": charges}), path, row_group_size=rows_per_group)
    return path
