"""HF datasets, map style: Parquet converted to its Arrow cache, random access to the mapped file.

As in its pages "Load" (`load_dataset("parquet")`) and "Use with PyTorch" (a BatchSampler: one read for a batch), in
torchdata's StatefulDataLoader, whose samplers have a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datasets
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler

from benchmarks.peers.loaders.base import Job, Ragged, from_arrow


def prepare(source: Path, target: Path) -> None:
    """Write the Arrow cache."""
    _data(Job(source, target, 0, 0, 0))


def _data(job: Job) -> datasets.Dataset:
    datasets.disable_progress_bars()
    return datasets.load_dataset("parquet", data_files=job.files, split="train", cache_dir=str(job.prepared))


class Loader:
    def __init__(self, job: Job) -> None:
        data = _data(job).with_format("arrow")
        order = RandomSampler(data, generator=torch.Generator().manual_seed(job.seed))
        self._loader = StatefulDataLoader(
            data,
            sampler=BatchSampler(order, job.batch_events, drop_last=False),
            batch_size=None,
            num_workers=job.workers,
            collate_fn=from_arrow,
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
