"""HF datasets, `streaming=True`: Parquet read as it is, in torchdata's StatefulDataLoader.

As in its pages "Stream" (`shuffle` with a buffer; `reshard` for shards of a row group; `map` and `interleave_datasets`;
"Save a dataset checkpoint and resume iteration"), "Load" (`filters` of Parquet) and "Use with PyTorch" (workers).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import datasets
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.features import WEIGHTS, log_energies_of_table, where
from benchmarks.peers.loaders.base import Job, Ragged, from_rows


def _set(job: Job, files: list[str]) -> datasets.IterableDataset:
    asked = {"filters": where()} if "filter" in job.features else {}
    data = datasets.load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=True,
        cache_dir=str(job.prepared),
        columns=job.columns,
        **asked,
    ).reshard()
    if "transform" in job.features:
        data = data.with_format("arrow").map(log_energies_of_table, batched=True).with_format(None)
    return data


class Loader:
    def __init__(self, job: Job) -> None:
        datasets.disable_progress_bars()
        if "mix" in job.features:
            sets = [_set(job, files) for files in job.sets.values()]
            data = datasets.interleave_datasets(sets, probabilities=list(WEIGHTS.values()), seed=job.seed)
        else:
            data = _set(job, job.files)
        data = data.shuffle(seed=job.seed, buffer_size=10_000)
        self._loader = StatefulDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=partial(from_rows, columns=job.columns),
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
