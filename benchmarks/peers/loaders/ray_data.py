"""Ray Data: read_parquet and iter_torch_batches with a collate function for Arrow.

As in its pages "Shuffling data" (files, then a local buffer) and "Iterating over data"; `preserve_order` for an order
that can be repeated, as it says beside the seed. `filter` by an expression, `mix` by weights, `map_batches` on Arrow.

It has no state within an epoch: users skip the batches that they had. That is done here, with the same seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import pyarrow as pa
import ray
from ray.data import DataContext, FileShuffleConfig, MixStoppingCondition
from ray.data.collate_fn import ArrowBatchCollateFn
from ray.data.expressions import col

from benchmarks.peers.features import LEAST_ENERGY_GEV, LEAST_MUONS, WEIGHTS, log_energies_of_table
from benchmarks.peers.loaders.base import Job, Ragged, from_arrow


class ToTensors(ArrowBatchCollateFn):
    """Tensors from an Arrow table, in Ray's thread for it."""

    def __call__(self, batch: pa.Table) -> dict:
        return from_arrow(batch)._asdict()


def _set(job: Job, files: list[str]) -> ray.data.Dataset:
    order = FileShuffleConfig(seed=job.seed, reseed_after_execution=False)
    data = ray.data.read_parquet(files, columns=job.columns, shuffle=order)
    if "filter" in job.features:
        is_kept = (col("primary").list[0] > LEAST_ENERGY_GEV) & (col("muons").list.len() >= LEAST_MUONS)
        data = data.filter(expr=is_kept)
    if "transform" in job.features:
        data = data.map_batches(log_energies_of_table, batch_format="pyarrow")
    return data


class Loader:
    def __init__(self, job: Job) -> None:
        self._job, self._given = job, 0
        ray.init(num_cpus=job.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        if "mix" in job.features:
            first, *others = [_set(job, files) for files in job.sets.values()]
            stop = MixStoppingCondition.STOP_ON_SHORTEST
            self._data = first.mix(*others, weights=list(WEIGHTS.values()), stopping_condition=stop)
        else:
            self._data = _set(job, job.files)

    def state_dict(self) -> dict[str, int]:
        return {"batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._given = state["batches"]

    def __iter__(self) -> Iterator[Ragged]:
        skipped, is_over = self._given, False
        while not is_over:  # again where all batches of the epoch were had
            self._given = 0
            for batch in self._batches():
                self._given += 1
                if self._given > skipped:
                    is_over = True
                    yield Ragged(**batch)
            skipped = self._given = 0

    def _batches(self) -> Iterable[dict]:
        return self._data.iter_torch_batches(
            batch_size=self._job.batch_events,
            prefetch_batches=2,
            local_shuffle_buffer_size=10_000,
            local_shuffle_seed=self._job.seed,
            collate_fn=ToTensors(),
        )

    def close(self) -> None:
        ray.shutdown()
