"""Outliers of one unit as a Parquet file: the workload's source schema, and where each event came from."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.ragged import Array
from common.schema import Workload
from common.status import OUTLIER_FOLDER


@dataclass(frozen=True)
class Outlier:
    """One event that has too many particles, whole."""

    file: str
    row: int
    event_columns: dict[str, Array]
    """Name -> (fields,)."""
    particle_columns: dict[str, Array]
    """Name -> (P, fields)."""

    @property
    def num_particles(self) -> int:
        """Its particles."""
        return len(next(iter(self.particle_columns.values())))


def outlier_path(run_dir: Path, k: int) -> Path:
    """Named by the unit: decoding it again replaces the file."""
    return run_dir / OUTLIER_FOLDER / f"unit-{k:010d}.parquet"


def write_outliers(path: Path, outliers: Sequence[Outlier], workload: Workload) -> None:
    """Write the file atomically. It can be an input again."""
    columns: dict[str, pa.Array] = {}
    counts = np.array([outlier.num_particles for outlier in outliers])
    for source in workload.source_columns:
        width = len(workload.column(source.into).fields)
        if source.nesting == 2:
            values = np.concatenate([outlier.particle_columns[source.into] for outlier in outliers])
            columns[source.name] = pa.ListArray.from_arrays(_offsets(counts), _lists(values, width))
            continue
        values = np.stack([outlier.event_columns[source.into] for outlier in outliers])
        columns[source.name] = _lists(values, width) if source.nesting else pa.array(values[:, source.field])
    columns["source_file"] = pa.array([outlier.file for outlier in outliers])
    columns["source_row"] = pa.array([outlier.row for outlier in outliers], pa.int64())
    columns["num_particles"] = pa.array(counts, pa.int64())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{secrets.token_hex(4)}.part")  # two decoders may be at it, one of them thought hung
    pq.write_table(pa.table(columns), part)
    part.replace(path)


def _lists(values: Array, width: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(_offsets(np.full(len(values), width)), pa.array(values.reshape(-1)))


def _offsets(counts: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
