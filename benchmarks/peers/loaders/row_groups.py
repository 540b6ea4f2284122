"""Row groups of Parquet files as a user reads them who knows Arrow: in random order, the rows of several permuted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.features import filtered, log_energies_of_table
from benchmarks.peers.loaders.base import Job, Ragged, from_arrow

GROUPS = 4
"""Row groups whose rows are permuted together."""

Group = tuple[str, int]


def groups_of(files: list[str], seed: int, epoch: int) -> list[Group]:
    """Row groups of all files, in the order of an epoch."""
    groups = [(path, group) for path in files for group in range(pq.read_metadata(path).num_row_groups)]
    np.random.default_rng((seed, epoch)).shuffle(groups)
    return [(path, int(group)) for path, group in groups]


def windows_of(groups: list[Group]) -> list[tuple[int, list[Group]]]:
    """Row groups, some at a time, each with its number."""
    return [(first // GROUPS, groups[first : first + GROUPS]) for first in range(0, len(groups), GROUPS)]


def rows_of(window: tuple[int, list[Group]], job: Job, epoch: int) -> pa.Table:
    """Rows of some row groups, permuted; filtered and transformed if that was asked for."""
    number, groups = window
    parts = [pq.ParquetFile(path).read_row_group(group, columns=job.columns) for path, group in groups]
    rows = pa.concat_tables(parts)
    if "filter" in job.features:
        rows = filtered(rows)
    rows = rows.take(np.random.default_rng((job.seed, epoch, number)).permutation(rows.num_rows))
    return log_energies_of_table(rows) if "transform" in job.features else rows


def batches_of(rows: pa.Table, job: Job, first: int = 0) -> Iterator[Ragged]:
    """Batches of such rows, from number `first` on."""
    for place in range(first * job.batch_events, rows.num_rows, job.batch_events):
        yield from_arrow(rows.slice(place, job.batch_events))
