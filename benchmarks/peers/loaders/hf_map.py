"""HF datasets, map style: Parquet converted to its Arrow cache, random access to the mapped file.

As in its pages "Load" (`load_dataset("parquet")`) and "Use with PyTorch" (a BatchSampler: one read for a batch), in
torchdata's StatefulDataLoader, whose samplers have a state. `filter` is computed before, and cached; the transform is
that of `collate_fn`, in the workers; sets are mixed by `interleave_datasets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import datasets
import pyarrow as pa
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler, RandomSampler

from benchmarks.peers.features import WEIGHTS, is_kept, log_energies_of_table
from benchmarks.peers.loaders.base import Job, Ragged, from_arrow


def prepare(source: Path, target: Path) -> None:
    """Write the Arrow cache."""
    _sets(Job(source, target, 0, 0, 0))


def _sets(job: Job) -> list[datasets.Dataset]:
    datasets.disable_progress_bars()
    return [
        datasets.load_dataset("parquet", name=name, data_files=files, split="train", cache_dir=str(job.prepared))
        for name, files in job.sets.items()
    ]


def _data(job: Job) -> datasets.Dataset:
    sets = [one.select_columns(job.columns).with_format("arrow") for one in _sets(job)]
    if "filter" in job.features:
        sets = [one.filter(lambda table: is_kept(table).to_pylist(), batched=True) for one in sets]
    if "mix" in job.features:
        return datasets.interleave_datasets(sets, probabilities=list(WEIGHTS.values()), seed=job.seed)
    return datasets.concatenate_datasets(sets)


def collate(rows: pa.Table, is_transformed: bool) -> Ragged:
    return from_arrow(log_energies_of_table(rows) if is_transformed else rows)


class Loader:
    def __init__(self, job: Job) -> None:
        data = _data(job)
        order = RandomSampler(data, generator=torch.Generator().manual_seed(job.seed))
        self._loader = StatefulDataLoader(
            data,
            sampler=BatchSampler(order, job.batch_events, drop_last=False),
            batch_size=None,
            num_workers=job.workers,
            collate_fn=partial(collate, is_transformed="transform" in job.features),
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
