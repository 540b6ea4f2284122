"""MosaicML Streaming: MDS shards, StreamingDataset and StreamingDataLoader.

As in its pages "Dataset format" (no Parquet: files are converted), "Shuffling" (`py1e`, the default) and "Fast
resumption". Muons are `bytes`, since its `ndarray` refuses arrays of no elements. Without compression, the fastest on a
local disk. Rows are collated in the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.peers.loaders.base import COLUMNS, Job, Ragged, from_rows


def _streaming():
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
    """Write all events as MDS shards."""
    columns = {
        "primary_major_id": "uint64",
        "primary_minor_id": "uint64",
        "primary": "ndarray:float32:4",
        "muons": "bytes",
    }
    with _streaming().MDSWriter(out=str(target), columns=columns) as writer:
        for path in sorted(source.rglob("*.parquet")):
            table = pq.read_table(path, columns=COLUMNS)
            major, minor = (table[name].to_numpy() for name in COLUMNS[:2])
            primary = np.stack(table["primary"].to_numpy())
            muons = table["muons"].combine_chunks()
            values = muons.flatten().flatten().to_numpy().reshape(-1, 3)
            offsets = muons.offsets.to_numpy()
            for row in range(table.num_rows):
                writer.write(
                    {
                        "primary_major_id": major[row],
                        "primary_minor_id": minor[row],
                        "primary": primary[row],
                        "muons": values[offsets[row] : offsets[row + 1]].tobytes(),
                    }
                )


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Batch as a dictionary: StreamingDataLoader counts the events of its first value."""
    return from_rows([row | {"muons": np.frombuffer(row["muons"], np.float32)} for row in rows])._asdict()


class Loader:
    def __init__(self, job: Job) -> None:
        streaming = _streaming()
        # What a killed process left in shared memory; its FAQ has this call for a start after a crash.
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(
            local=str(job.prepared), shuffle=True, shuffle_seed=job.seed, batch_size=job.batch_events
        )
        self._loader = streaming.StreamingDataLoader(
            data,
            batch_size=job.batch_events,
            num_workers=job.workers,
            collate_fn=collate,
            persistent_workers=True,
        )
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Ragged]:
        for batch in self._loader:
            yield Ragged(**batch)

    def close(self) -> None:
        del self._loader
