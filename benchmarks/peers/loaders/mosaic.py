"""MosaicML Streaming: MDS shards, StreamingDataset and StreamingDataLoader.

As in its pages "Dataset format" (no Parquet: files are converted), "Shuffling" (`py1e`, the default) and "Fast
resumption". Muons are `bytes`, since its `ndarray` refuses arrays of no elements. Without compression, the fastest on a
local disk. Rows are collated in the workers. A set is a Stream, mixed by `proportion`; a transform is in `__getitem__`
of a subclass. It has no filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.features import COLUMN, WEIGHTS, log_energies
from benchmarks.peers.loaders.base import Job, Ragged, from_rows, rows_of


def _streaming() -> Any:
    """Package `streaming`. It imports torchvision, whose PyPI build does not load beside a CPU build of torch: then a
    pair of operators, which are not used here, is declared first."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    import streaming

    return streaming


def prepare(source: Path, target: Path) -> None:
    """Write all events as MDS shards, in a folder for each set."""
    columns = {
        "primary_major_id": "uint64",
        "primary_minor_id": "uint64",
        "primary": "ndarray:float32:4",
        "muons": "bytes",
        COLUMN: "float32",
    }
    for name, files in Job(source, target, 0, 0, 0).sets.items():
        with _streaming().MDSWriter(out=str(target / name), columns=columns) as writer:
            for path in files:
                for row in rows_of(path):
                    writer.write(row)


def transformed(base: Any) -> Any:
    """Subclass of StreamingDataset with the transform."""

    class Transformed(base):  # type: ignore[misc]
        def __getitem__(self, at: int) -> dict:
            row = super().__getitem__(at)
            return row | {"muons": log_energies(np.frombuffer(row["muons"], np.float32).reshape(-1, 3))}

    return Transformed


def collate(rows: list[dict], columns: list[str], is_transformed: bool) -> dict[str, torch.Tensor]:
    """Batch as a dictionary: StreamingDataLoader counts the events of its first value."""
    if not is_transformed:
        rows = [row | {"muons": np.frombuffer(row["muons"], np.float32)} for row in rows]
    return from_rows(rows, columns)._asdict()


class Loader:
    def __init__(self, job: Job) -> None:
        streaming = _streaming()
        # What a killed process left in shared memory; its FAQ has this call for a start after a crash.
        streaming.base.util.clean_stale_shared_memory()

        is_transformed = "transform" in job.features
        streams = [
            streaming.Stream(local=str(job.prepared / name), proportion=weight if "mix" in job.features else None)
            for name, weight in WEIGHTS.items()
        ]
        data = (transformed(streaming.StreamingDataset) if is_transformed else streaming.StreamingDataset)(
            streams=streams, shuffle=True, shuffle_seed=job.seed, batch_size=job.batch_events
        )
        self._loader = streaming.StreamingDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=partial(collate, columns=job.columns, is_transformed=is_transformed),
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._loader:
            yield Ragged(**batch)

    def close(self) -> None:
        del self._loader
