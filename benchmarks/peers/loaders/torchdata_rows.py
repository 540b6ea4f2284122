"""torchdata's StatefulDataLoader over an IterableDataset of one's own: row groups of Parquet, with pyarrow.

As in its tutorial, "Saving custom state with iterable-style datasets": the dataset has state_dict and
load_state_dict. It is what a user writes who knows Arrow: row groups in random order, shared out among the workers,
the rows of four at a time permuted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.loaders.base import COLUMNS, Job, Ragged, from_arrow

GROUPS = 4


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
        windows = self._windows()
        size = self._job.batch_events
        while self._window < len(windows):
            rows = self._rows(windows[self._window])
            for first in range(self._batch * size, rows.num_rows, size):
                self._batch += 1
                yield from_arrow(rows.slice(first, size))
            self._window, self._batch = self._window + 1, 0
        self._epoch += 1

    def _windows(self) -> list[tuple[tuple[str, int], ...]]:
        """Row groups of this worker, four at a time."""
        groups = [(path, group) for path in self._job.files for group in range(pq.read_metadata(path).num_row_groups)]
        np.random.default_rng((self._job.seed, self._epoch)).shuffle(groups)
        worker = get_worker_info()
        mine = groups[worker.id :: worker.num_workers] if worker else groups
        return [tuple(mine[first : first + GROUPS]) for first in range(0, len(mine), GROUPS)]

    def _rows(self, window: tuple[tuple[str, int], ...]) -> pa.Table:
        parts = [pq.ParquetFile(path).read_row_group(int(group), columns=COLUMNS) for path, group in window]
        rows = pa.concat_tables(parts)
        order = np.random.default_rng((self._job.seed, self._epoch, self._window)).permutation(rows.num_rows)
        return rows.take(order)


class Loader:
    def __init__(self, job: Job) -> None:
        self._loader = StatefulDataLoader(
            RowGroups(job), batch_size=None, num_workers=job.workers, persistent_workers=True
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        yield from self._loader

    def close(self) -> None:
        del self._loader
