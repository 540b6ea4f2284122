"""Parts of all loaders: the task, the batch, and its making from Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.peers.features import COLUMN, WEIGHTS

COLUMNS = ["primary_major_id", "primary_minor_id", "primary", "muons"]


class Job(NamedTuple):
    """Task of a loader."""

    source: Path
    """Folder of Parquet files: one folder below for each set."""
    prepared: Path
    """Folder of what `prepare` made."""
    workers: int
    batch_events: int
    seed: int
    features: tuple[str, ...] = ()
    """Features that are switched on, of features.FEATURES."""

    @property
    def sets(self) -> dict[str, list[str]]:
        """Files of each set."""
        return {name: [str(path) for path in sorted((self.source / name).rglob("*.parquet"))] for name in WEIGHTS}

    @property
    def files(self) -> list[str]:
        return [path for paths in self.sets.values() for path in paths]

    @property
    def columns(self) -> list[str]:
        """Columns to read."""
        return [*COLUMNS, COLUMN] if "column" in self.features else COLUMNS


class Ragged(NamedTuple):
    """Batch of E events with P muons in total, as tensors."""

    ids: Tensor
    """(E, 2) int64"""
    primary: Tensor
    """(E, 4) float32"""
    offsets: Tensor
    """(E + 1,) int64"""
    muons: Tensor
    """(P, 3) float32"""
    weight: Tensor
    """(E,) float32, the user's own column; (0,) where it was not asked for"""


def from_arrow(table: pa.Table) -> Ragged:
    """Batch from an Arrow table, without a loop over events."""
    ids = np.stack([table[name].to_numpy().astype(np.int64) for name in COLUMNS[:2]], axis=1)
    primary, muons = (_one(table[name]) for name in COLUMNS[2:])
    offsets = muons.offsets.to_numpy().astype(np.int64)
    weight = table[COLUMN].to_numpy().copy() if COLUMN in table.column_names else np.empty(0, np.float32)
    return Ragged(
        torch.from_numpy(ids),
        torch.from_numpy(primary.flatten().to_numpy().reshape(-1, 4).copy()),
        torch.from_numpy(offsets - offsets[0]),
        torch.from_numpy(muons.flatten().flatten().to_numpy().reshape(-1, 3).copy()),
        torch.from_numpy(weight),
    )


def _one(column: pa.ChunkedArray) -> pa.ListArray:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def rows_of(path: str) -> Iterator[dict]:
    """Events of a Parquet file one by one, the muons as bytes: for conversions."""
    table = pq.read_table(path, columns=[*COLUMNS, COLUMN])
    major, minor, weight = (table[name].to_numpy() for name in (*COLUMNS[:2], COLUMN))
    primary = np.stack(table["primary"].to_numpy())
    muons = table["muons"].combine_chunks()
    values = muons.flatten().flatten().to_numpy().reshape(-1, 3)
    offsets = muons.offsets.to_numpy()
    for row in range(table.num_rows):
        yield {
            "primary_major_id": major[row],
            "primary_minor_id": minor[row],
            "primary": primary[row],
            "muons": values[offsets[row] : offsets[row + 1]].tobytes(),
            COLUMN: weight[row],
        }


def from_rows(rows: list[dict], columns: list[str]) -> Ragged:
    """Batch from rows, each with an array a column."""
    muons = [np.asarray(row["muons"], np.float32).reshape(-1, 3) for row in rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(one) for one in muons], out=offsets[1:])
    ids = [(int(row["primary_major_id"]), int(row["primary_minor_id"])) for row in rows]
    return Ragged(
        torch.tensor(ids, dtype=torch.int64),
        torch.from_numpy(np.stack([np.asarray(row["primary"], np.float32) for row in rows])),
        torch.from_numpy(offsets),
        torch.from_numpy(np.concatenate(muons)),
        torch.tensor([row[COLUMN] for row in rows] if COLUMN in columns else [], dtype=torch.float32),
    )
