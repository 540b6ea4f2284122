"""Speed of the HDF5 reader against h5py on the same datasets.

Question: files in the converter's layout (primaries, muons, counts), read into checked ragged rows by the decoder's
reader, against `h5py` reading the same three datasets in large slices. Asked: 0.7 ×.

Command, from the repository's root:

    python -m benchmarks.bench_hdf5 [--events 400000] [--repeats 7]

Table: median CPU time an event of each, in turn, one thread, with the decoder's heap, files in the page cache; for
datasets stored in chunks with gzip and with lzf, in chunks without compression, and as one contiguous piece. float32,
`bench` preset: the converter's filler stands for half of the events.

Reading: work beyond h5py: cut off the id columns (a strided copy of each muon), compare the ids of every muon with
those of its event, check lengths and values, drop fillers. Chunks without compression are read past HDF5, which copies
them number by number. In one piece reading is a memcpy, and this work takes most of the time, although it is one pass
in C++ where there is a compiler (common/files/hdf5/span.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from common.config import StreamConfig
from common.files.hdf5.reader import Hdf5Reader
from common.files.native import FILES
from common.files.whole_file import plan_file
from common.messages import Part
from services.decoder.heap import share_one_heap
from workloads.muons.columns import MUONS
from workloads.muons.simulator.config import PRESETS
from workloads.muons.simulator.write import DatasetPlan, _tables

SLICE_ROWS = 1 << 18
STORED: dict[str, dict[str, Any]] = {
    "gzip": {"chunks": True, "compression": "gzip"},
    "lzf": {"chunks": True, "compression": "lzf"},
    "chunks": {"chunks": True},
    "contiguous": {},
}
AIM = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description="The HDF5 reader against h5py.")
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    share_one_heap()
    FILES.use()
    tables = flat_tables(arguments.events)
    print(f"{'stored':<12}{'h5py ns/event':>14}{'reader ns/event':>17}{'ratio':>8}")
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in STORED.items():
            path = Path(folder) / f"{name}.h5"
            with h5py.File(path, "w") as file:
                for dataset, values in tables.items():
                    file.create_dataset(dataset, data=values, **options)
            parts = parts_of(path)
            cases: tuple[Callable[[], object], ...] = (lambda: by_h5py(path), lambda: by_reader(parts))  # noqa: B023
            times: tuple[list[float], ...] = ([], [])
            for repeat in range(arguments.repeats + 1):
                for case, found in zip(cases, times, strict=True):
                    started_s = time.process_time()
                    case()
                    if repeat:
                        found.append((time.process_time() - started_s) / arguments.events * 1e9)
            alone, ours = (statistics.median(found) for found in times)
            ratios[name] = round(alone / ours, 3)
            print(f"{name:<12}{alone:>14.1f}{ours:>17.1f}{ratios[name]:>8.2f}")
    print(json.dumps({"benchmark": "hdf5", "ratios": ratios, "aim": AIM}))


def flat_tables(num_events: int) -> dict[str, np.ndarray]:
    """Tables of the bench preset as the converter writes them: an event without muons has one of zeros."""
    primaries, muons, counts = [], [], []
    for table in _tables(PRESETS["bench"], DatasetPlan(num_events, 1, seed=1), 0):
        ids = np.stack([table["primary_major_id"].to_numpy(), table["primary_minor_id"].to_numpy()], 1)
        primary = table["primary"].combine_chunks().flatten().to_numpy().reshape(-1, 4)
        primaries.append(np.concatenate([ids, primary], 1).astype(np.float32))
        lists = table["muons"].combine_chunks()
        found = np.diff(lists.offsets.to_numpy())
        stored = np.maximum(found, 1)
        rows = np.zeros((stored.sum(), 5), np.float32)
        is_muon = np.repeat(found > 0, stored)
        rows[is_muon, :2] = np.repeat(ids, found, 0)
        rows[is_muon, 2:] = lists.flatten().flatten().to_numpy().reshape(-1, 3)
        muons.append(rows)
        counts.append(stored.astype(np.int32))
    return {"primaries": np.concatenate(primaries), "muons": np.concatenate(muons), "counts": np.concatenate(counts)}


def parts_of(path: Path) -> list[Part]:
    return plan_file(path, MUONS, StreamConfig(shuffle=False, slot_mib=16))[1]


def by_h5py(path: Path) -> int:
    rows = 0
    with h5py.File(path) as file:
        for name in ("primaries", "muons", "counts"):
            dataset = file[name]
            rows += sum(len(dataset[first : first + SLICE_ROWS]) for first in range(0, len(dataset), SLICE_ROWS))
    return rows


def by_reader(parts: list[Part]) -> int:
    reader = Hdf5Reader(MUONS)
    rows = sum(len(piece.counts) for part in parts for piece in reader.read([part]))
    reader.close()
    return rows


if __name__ == "__main__":
    main()
