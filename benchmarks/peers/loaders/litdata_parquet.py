"""LitData: StreamingDataset with ParquetLoader, and StreamingDataLoader.

As in its README, "Stream Parquet datasets": the files stay, an index of them is written. Rows are collated in the
workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from litdata import StreamingDataLoader, StreamingDataset, index_parquet_dataset
from litdata.streaming.item_loader import ParquetLoader

from benchmarks.peers.loaders.base import Job, Ragged, from_rows


def prepare(source: Path, target: Path) -> None:
    """Write the index, beside links to all files in one folder: it finds no files in folders below."""
    target.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(source.rglob("*.parquet"))):
        os.link(path, target / f"{number:05}.parquet")
    index_parquet_dataset(str(target), str(target))


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    return from_rows(rows)._asdict()


class Loader:
    def __init__(self, job: Job) -> None:
        data = StreamingDataset(
            str(job.prepared), item_loader=ParquetLoader(), shuffle=True, seed=job.seed, index_path=str(job.prepared)
        )
        self._loader = StreamingDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=collate,
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
