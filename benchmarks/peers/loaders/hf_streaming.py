"""HF datasets, `streaming=True`: Parquet read as it is, in torchdata's StatefulDataLoader.

As in its pages "Stream" (`shuffle` with a buffer; `reshard` for shards of a row group; "Save a dataset checkpoint and
resume iteration") and "Use with PyTorch" (workers).
"""

from __future__ import annotations

from collections.abc import Iterator

import datasets
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.loaders.base import Job, Ragged, from_rows


class Loader:
    def __init__(self, job: Job) -> None:
        datasets.disable_progress_bars()
        data = datasets.load_dataset(
            "parquet", data_files=job.files, split="train", streaming=True, cache_dir=str(job.prepared)
        )
        data = data.reshard().shuffle(seed=job.seed, buffer_size=10_000)
        self._loader = StatefulDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=from_rows,
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
