"""Ray Data: read_parquet and iter_torch_batches with a collate function for Arrow.

As in its pages "Shuffling data" (files, then a local buffer) and "Iterating over data"; `preserve_order` for an order
that can be repeated, as it says beside the seed.

It has no state within an epoch: users skip the batches that they had. That is done here, with the same seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import pyarrow as pa
import ray
from ray.data import DataContext, FileShuffleConfig
from ray.data.collate_fn import ArrowBatchCollateFn

from benchmarks.peers.loaders.base import COLUMNS, Job, Ragged, from_arrow


class ToTensors(ArrowBatchCollateFn):
    """Tensors from an Arrow table, in Ray's thread for it."""

    def __call__(self, batch: pa.Table) -> dict:
        return from_arrow(batch)._asdict()


class Loader:
    def __init__(self, job: Job) -> None:
        self._job, self._given = job, 0
        ray.init(num_cpus=job.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        self._data = ray.data.read_parquet(
            job.files,
            columns=COLUMNS,
            shuffle=FileShuffleConfig(seed=job.seed, reseed_after_execution=False),
        )

    def state_dict(self) -> dict[str, int]:
        return {"batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._given = state["batches"]

    def __iter__(self) -> Iterator[Ragged]:
        skipped, self._given = self._given, 0
        batches = self._data.iter_torch_batches(
            batch_size=self._job.batch_events,
            prefetch_batches=2,
            local_shuffle_buffer_size=10_000,
            local_shuffle_seed=self._job.seed,
            collate_fn=ToTensors(),
        )
        for batch in batches:
            self._given += 1
            if self._given > skipped:
                yield Ragged(**batch)
        self._given = 0

    def close(self) -> None:
        ray.shutdown()
