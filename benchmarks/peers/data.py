"""The files that are read: two sets of muon bundles, with a column of the user's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.peers.features import COLUMN, IDS_OF_IRON, WEIGHTS, weight_of

MAJOR_ID, MINOR_ID = "primary_major_id", "primary_minor_id"


def simulated(folder: Path, events: int, files: int, seed: int) -> Path:
    """Write a folder of files for each set, of half the events each; return `folder`."""
    for number, name in enumerate(WEIGHTS):
        command = [sys.executable, "-m", "icestream", "simulate", str(folder / name), "--preset", "bench"]
        command += ["--seed", str(seed + number), "--events", str(events // 2), "--files", str(files // 2)]
        subprocess.run(command, check=True, capture_output=True)
        for path in (folder / name).rglob("*.parquet"):
            _add_column(path, IDS_OF_IRON * number)
    return folder


def _add_column(path: Path, first_major_id: int) -> None:
    """Write a file again as it was, with the user's column, and with ids that no other set has."""
    metadata, table = pq.read_metadata(path), pq.read_table(path)
    major_ids = table[MAJOR_ID].to_numpy() + first_major_id
    place = table.schema.get_field_index(MAJOR_ID)
    table = table.set_column(place, MAJOR_ID, pa.array(major_ids, table.schema.field(MAJOR_ID).type))
    weight = weight_of(torch.from_numpy(table[MINOR_ID].to_numpy().astype("int64"))).numpy()
    table = table.append_column(pa.field(COLUMN, pa.float32()), pa.array(weight))
    rows, compression = metadata.row_group(0).num_rows, metadata.row_group(0).column(0).compression
    pq.write_table(
        table, path, row_group_size=rows, compression=compression, use_dictionary=False, write_page_checksum=True
    )


def copied(source: Path, target: Path, copies: int) -> Path:
    """Copy each set's files some times over, for loaders that read Parquet; return `target`."""
    for path in sorted(source.rglob("*.parquet")):
        name = path.relative_to(source).parts[0]
        for copy in range(copies):
            (target / name / str(copy)).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name / str(copy) / path.name)
    return target
