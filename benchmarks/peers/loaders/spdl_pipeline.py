"""SPDL: a Pipeline of one's own in a subprocess, which it recommends, with threads that read row groups with pyarrow.

As in its pages "Execution models" (`run_pipeline_in_subprocess`), "Pipeline stages" and "Shared-memory arena". It reads
no Parquet itself: the functions are the user's (row_groups.py), the stages, threads and transport are SPDL's. Sets are
mixed by MergeIterator, a row group at a time.

It has no state: users skip the batches that they had. That is done here, with the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess
from spdl.source.utils import MergeIterator

from benchmarks.peers.features import WEIGHTS
from benchmarks.peers.loaders.base import Job, Ragged
from benchmarks.peers.loaders.row_groups import Group, batches_of, groups_of, rows_of, windows_of


class Windows:
    """Source: some row groups at a time, in another order in each epoch."""

    def __init__(self, job: Job, epoch: int) -> None:
        self._job, self._epoch = job, epoch

    def __iter__(self) -> Iterator[tuple[int, int, list[Group]]]:
        job, epoch = self._job, self._epoch
        if "mix" in job.features:
            sets = [groups_of(files, job.seed, epoch) for files in job.sets.values()]
            groups = list(MergeIterator(sets, weights=list(WEIGHTS.values()), stop_after=-1, seed=job.seed + epoch))
        else:
            groups = groups_of(job.files, job.seed, epoch)
        for number, window in windows_of(groups):
            yield epoch, number, window
        self._epoch += 1


def batches(task: tuple[int, int, list[Group]], job: Job) -> list[Ragged]:
    epoch, number, window = task
    return list(batches_of(rows_of((number, window), job, epoch), job))


class Loader:
    def __init__(self, job: Job) -> None:
        self._job, self._epoch, self._given, self._skipped = job, 0, 0, 0
        self._pipeline: Iterable[Ragged] | None = None

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._skipped = state["epoch"], state["batches"]

    def __iter__(self) -> Iterator[Ragged]:
        if self._pipeline is None:
            workers = max(1, self._job.workers)
            builder = (
                PipelineBuilder()
                .add_source(Windows(self._job, self._epoch))
                .pipe(partial(batches, job=self._job), concurrency=workers, output_order="input")
                .disaggregate()
                .add_sink(4)
            )
            self._pipeline = run_pipeline_in_subprocess(builder.get_config(), num_threads=workers)
        is_over = False
        while not is_over:  # again where all batches of the epoch were had
            self._given = 0
            for batch in self._pipeline:
                self._given += 1
                if self._given > self._skipped:
                    is_over = True
                    yield batch
            self._epoch, self._given, self._skipped = self._epoch + 1, 0, 0

    def close(self) -> None:
        self._pipeline = None
