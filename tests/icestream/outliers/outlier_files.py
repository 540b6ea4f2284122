"""Outlier files as decoders write them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from muon_files import make_events, make_table


def unit_path(folder: Path, k: int) -> Path:
    return folder / f"unit-{k:010d}.parquet"


def outlier_table(k: int, counts: Sequence[int], first: int = 0, number: pa.DataType | None = None) -> pa.Table:
    """One event of ``counts[i]`` particles each; ``source_file`` tells the unit, ``source_row`` the event."""
    table = make_table(make_events(counts, first=1000 * k + first), number=number)
    table = table.append_column("source_file", pa.array([f"file of unit {k}"] * len(counts)))
    table = table.append_column("source_row", pa.array(range(first, first + len(counts)), pa.int64()))
    return table.append_column("num_particles", pa.array(counts, pa.int64()))


def write_unit(folder: Path, k: int, counts: Sequence[int], first: int = 0, number: pa.DataType | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(outlier_table(k, counts, first, number), unit_path(folder, k))
    return unit_path(folder, k)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All events in all files of the folder, as an input would take them: files in order of name."""
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def key_of(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["source_file"], row["source_row"], row["num_particles"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
