"""torchdata: StatefulDataLoader over an IterableDataset of one's own, and nodes for a mixture; row groups with pyarrow.

As in its tutorial, "Saving custom state with iterable-style datasets": the dataset has state_dict and
load_state_dict. It is what a user writes who knows Arrow (row_groups.py), shared out among the workers. Sets are mixed
by nodes.MultiNodeWeightedSampler, 64 events at a time, from rows that a thread reads for each set.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info
from torchdata import nodes
from torchdata.nodes.samplers.stop_criteria import StopCriteria
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.features import WEIGHTS
from benchmarks.peers.loaders.base import Job, Ragged, from_arrow
from benchmarks.peers.loaders.row_groups import batches_of, groups_of, rows_of, windows_of

CHUNK = 64


class RowGroups(IterableDataset):
    """Batches from the row groups of files, with a state."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._epoch, self._window, self._batch = 0, 0, 0
        self._resumed = False

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "window": self._window, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._window, self._batch = state["epoch"], state["window"], state["batch"]
        self._resumed = True

    def __iter__(self) -> Iterator[Ragged]:
        if not self._resumed:
            self._window = self._batch = 0
        self._resumed = False
        groups, worker = groups_of(self._job.files, self._job.seed, self._epoch), get_worker_info()
        windows = windows_of(groups[worker.id :: worker.num_workers] if worker else groups)
        while self._window < len(windows):
            rows = rows_of(windows[self._window], self._job, self._epoch)
            for batch in batches_of(rows, self._job, self._batch):
                self._batch += 1
                yield batch
            self._window, self._batch = self._window + 1, 0
        self._epoch += 1


def chunks_of(window: tuple[int, list[tuple[str, int]]], job: Job) -> list[pa.Table]:
    rows = rows_of(window, job, 0)
    return [rows.slice(first, CHUNK) for first in range(0, rows.num_rows, CHUNK)]


def joined(chunks: list[pa.Table]) -> Ragged:
    return from_arrow(pa.concat_tables(chunks).combine_chunks())


def mixed(job: Job) -> nodes.Loader:
    """Loader of a mixture of the sets."""
    sources = {}
    for name, files in job.sets.items():
        windows = nodes.IterableWrapper(windows_of(groups_of(files, job.seed, 0)))
        tables = nodes.ParallelMapper(windows, partial(chunks_of, job=job), num_workers=max(1, job.workers // 2))
        sources[name] = nodes.Unbatcher(tables)
    stop = StopCriteria.FIRST_DATASET_EXHAUSTED
    chunks = nodes.MultiNodeWeightedSampler(sources, WEIGHTS, stop_criteria=stop, seed=job.seed)
    batches = nodes.Batcher(chunks, job.batch_events // CHUNK, drop_last=False)
    return nodes.Loader(nodes.Prefetcher(nodes.Mapper(batches, joined), prefetch_factor=2))


class Loader:
    def __init__(self, job: Job) -> None:
        if "mix" in job.features:
            self._loader = mixed(job)
        else:
            self._loader = StatefulDataLoader(
                RowGroups(job), batch_size=None, num_workers=job.workers, persistent_workers=True
            )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
