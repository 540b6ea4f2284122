"""LitData: StreamingDataset with ParquetLoader, and StreamingDataLoader.

As in its README, "Stream Parquet datasets": the files stay, an index of them is written. Rows are collated in the
workers. Sets are mixed by CombinedStreamingDataset, and `transform` is an argument of StreamingDataset; no filter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, index_parquet_dataset
from litdata.streaming.item_loader import ParquetLoader

from benchmarks.peers.features import WEIGHTS, log_energies
from benchmarks.peers.loaders.base import Job, Ragged, from_rows

ALL = "all"


def prepare(source: Path, target: Path) -> None:
    """Write the index of each set, and of both, beside links to the files in one folder: it looks in none below."""
    job = Job(source, target, 0, 0, 0)
    for name, files in (job.sets | {ALL: job.files}).items():
        (target / name).mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(files):
            os.link(path, target / name / f"{number:05}.parquet")
        index_parquet_dataset(str(target / name), str(target / name))


def collate(rows: list[dict], columns: list[str]) -> dict[str, torch.Tensor]:
    return from_rows(rows, columns)._asdict()


def transform(row: dict) -> dict:
    return row | {"muons": log_energies(np.asarray(row["muons"], np.float32).reshape(-1, 3))}


def _set(job: Job, name: str) -> StreamingDataset:
    place = str(job.prepared / name)
    changed = {"transform": transform} if "transform" in job.features else {}
    return StreamingDataset(
        place, item_loader=ParquetLoader(), shuffle=True, seed=job.seed, index_path=place, **changed
    )


class Loader:
    def __init__(self, job: Job) -> None:
        if "mix" in job.features:
            sets = [_set(job, name) for name in WEIGHTS]
            data = CombinedStreamingDataset(sets, weights=list(WEIGHTS.values()), seed=job.seed, iterate_over_all=False)
        else:
            data = _set(job, ALL)
        self._loader = StreamingDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=partial(collate, columns=job.columns),
            persistent_workers=True,
            multiprocessing_context="spawn",  # demanded for Parquet: Polars does not survive a fork
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._loader:
            yield Ragged(**batch)

    def close(self) -> None:
        del self._loader
