"""Speed of one decoder against Arrow's, and its memory.

Question: Parquet in the production schema to a filled slot, 65,536 events a unit, one thread, against
`ParquetFile.iter_batches` of the same columns and files. Asked: 0.8 × unshuffled, 0.55 × with shuffle and outlier
filter, 30 × against reading row by row (`as_py`); memory above the start at most 3 × the unit.

Command, from the repository's root:

    python -m benchmarks.bench_decoder [--events 655360] [--repeats 11]

Table: median wall time an event over the repeats, all cases but the last in turn, after one round to warm up;
`against Arrow` is the ratio of medians to `arrow`, which reads through a memory mapping as the decoder does, the
faster of Arrow's two modes; `arrow, defaults` opens the files as `ParquetFile(path)` does. The files are those of the
simulator's `bench` preset (4.6 muons an event, Snappy, no dictionary), with row groups of 10,000 rows as the simulator
writes them, and of 65,536. The filter sets aside events of more than 900 muons, two or three a unit, and writes them
to Parquet each time.

Memory: the largest RssAnon of a fresh process that decodes all units, sampled every millisecond, minus the value
before the first unit; divided by the bytes of the largest unit in its slot. The slot belongs to the arena and is not
counted.

Reading: the difference to Arrow is one pass of checks and one copy (unshuffled), and the permutation, a gather and
another copy (shuffled). With short row groups Arrow itself is slower (see docs/performance.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.config import StreamConfig
from common.files.footers import read_footer
from common.files.parquet.reader import ParquetReader
from common.messages import Unit
from common.plan import SlotCapacity, StagedFile, plan_block
from common.ragged import slot_bytes_needed
from services.decoder.cores import limit_math_threads
from services.decoder.decode import Decode
from services.decoder.heap import share_one_heap
from workloads.muons.columns import MUONS
from workloads.muons.simulator.config import PRESETS
from workloads.muons.simulator.write import DatasetPlan, write_dataset

UNIT_EVENTS = 65_536
ROW_GROUPS = (10_000, UNIT_EVENTS)
COLUMNS = [column.name for column in MUONS.source_columns]
SET_ASIDE_ABOVE = 900
AIMS = {"unshuffled": 0.8, "shuffled, filtered": 0.55, "row by row": 30.0, "memory": 3.0}


@dataclass
class Decoder:
    """A decoder's work without its process: units of these files into one slot."""

    files: Sequence[Path]
    shuffle: bool
    run_dir: Path

    def __post_init__(self) -> None:
        stream = StreamConfig(
            block_files=len(self.files),
            unit_events=UNIT_EVENTS
            - 10_000,  # a unit closes once it has as many: with one row group more, at most 65,536
            shuffle=self.shuffle,
            max_particles_per_event=SET_ASIDE_ABOVE if self.shuffle else 0,
            slot_mib=16,
        )
        capacity = SlotCapacity(MUONS, stream)
        staged = [StagedFile(i, str(f), read_footer(f, MUONS, stream, capacity)) for i, f in enumerate(self.files)]
        self.units: list[Unit] = plan_block(0, 0, 0, staged, capacity=capacity, stream=stream, seed=1)
        self.decode = Decode(MUONS, stream, 1, self.run_dir, ParquetReader(MUONS, shuffled=self.shuffle))
        self.slot = np.zeros(stream.slot_bytes, np.uint8)
        self.unit_bytes = 0

    def __call__(self) -> int:
        rows = 0
        for unit in self.units:
            layout, tally = self.decode(unit, self.slot)
            self.unit_bytes = max(self.unit_bytes, slot_bytes_needed(MUONS, layout))
            rows += tally.rows_read
        return rows


def arrow(files: Sequence[Path], **options: bool) -> int:
    """Arrow alone: decode every batch and drop it."""
    rows = 0
    for path in files:
        with pq.ParquetFile(path, **options) as file:
            rows += sum(batch.num_rows for batch in file.iter_batches(UNIT_EVENTS, columns=COLUMNS, use_threads=False))
    return rows


def row_by_row(files: Sequence[Path]) -> int:
    """Rows of the first unit as Python objects, then as arrays, as a loader without offsets reads them."""
    batch = next(pq.ParquetFile(files[0]).iter_batches(UNIT_EVENTS, columns=COLUMNS, use_threads=False))
    ids, primaries, muons = [], [], []
    for row in range(batch.num_rows):
        major, minor, primary, particles = (batch.column(name)[row].as_py() for name in COLUMNS)
        ids.append((major, minor))
        primaries.append(np.asarray(primary, np.float32))
        muons.append(np.asarray(particles, np.float32).reshape(-1, 3))
    np.asarray(ids, np.uint64), np.stack(primaries), np.concatenate(muons), np.cumsum([len(one) for one in muons])
    return int(batch.num_rows)


def anonymous_bytes() -> int:
    """Anonymous memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def memory_above_start(files: Sequence[Path], shuffle: bool) -> tuple[int, int]:
    """(bytes above the start, bytes of the largest unit); run it in a fresh process."""
    with tempfile.TemporaryDirectory() as run_dir:
        decoder = Decoder(files, shuffle, Path(run_dir))
        decoder.slot[:] = 1  # maps the slot's pages, as the arena does at its start
        Decoder(make_files(Path(run_dir), 20, 10), shuffle, Path(run_dir))()  # loads all code
        start = peak = anonymous_bytes()
        done = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not done.wait(0.001):
                peak = max(peak, anonymous_bytes())

        sampler = threading.Thread(target=sample)
        sampler.start()
        decoder()
        done.set()
        sampler.join()
        return max(peak, anonymous_bytes()) - start, decoder.unit_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="One decoder against Arrow.")
    parser.add_argument("--events", type=int, default=655_360)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--memory-of", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:  # Arrow and numpy are imported already: start again
        share_one_heap()
        limit_math_threads(1)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.bench_decoder", *sys.argv[1:]])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    share_one_heap()
    if arguments.memory_of:
        shuffle, *names = arguments.memory_of
        print(json.dumps(memory_above_start([Path(name) for name in names], shuffle == "shuffled")))
        return

    ratios: dict[str, float] = {}
    print(f"{'row groups':>10}  {'case':<22}{'ns/event':>9}{'events/s':>12}{'against Arrow':>15}")
    for rows in ROW_GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            files = make_files(Path(folder), arguments.events, rows)
            run_dir = Path(folder) / "run"
            cases: dict[str, Callable[[], int]] = {
                "arrow": lambda files=files: arrow(files, memory_map=True),
                "arrow, defaults": lambda files=files: arrow(files),
                "unshuffled": Decoder(files, False, run_dir),
                "shuffled, filtered": Decoder(files, True, run_dir),
            }
            ns = measure(cases, arguments.repeats, run_dir)
            # Last, and alone: millions of small objects leave a fragmented heap, in which everything is slower.
            ns |= measure({"row by row": lambda files=files: row_by_row(files)}, min(arguments.repeats, 5), run_dir)
            for name, value in ns.items():
                print(f"{rows:>10}  {name:<22}{value:>9.1f}{1e9 / value:>12,.0f}{ns['arrow'] / value:>15.3f}")
                ratios[f"{name}, {rows}"] = round(ns["arrow"] / value, 3)
            ratios[f"row by row, {rows}"] = round(ns["row by row"] / ns["shuffled, filtered"], 1)
            for shuffle in ("unshuffled", "shuffled"):
                command = [sys.executable, "-m", "benchmarks.bench_decoder", "--memory-of", shuffle, *map(str, files)]
                above, unit = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                print(
                    f"{rows:>10}  memory, {shuffle:<13} {above / 2**20:.1f} MiB above the start, "
                    f"{above / unit:.2f} × the unit of {unit / 2**20:.1f} MiB"
                )
                ratios[f"memory {shuffle}, {rows}"] = round(above / unit, 2)
            print(f"{rows:>10}  one decoder is {ratios[f'row by row, {rows}']:.0f} × as fast as row by row")
    print(json.dumps({"benchmark": "decoder", "ratios": ratios, "aims": AIMS}))


def make_files(folder: Path, events: int, rows_per_group: int) -> list[Path]:
    """Two files of the bench preset."""
    write_dataset(folder, PRESETS["bench"], DatasetPlan(events, 2, seed=1))
    files = sorted(folder.rglob("*.parquet"))
    for path in files:
        table = pq.read_table(path)
        pq.write_table(table, path, row_group_size=rows_per_group, compression="snappy", use_dictionary=False)
    return files


def measure(cases: dict[str, Callable[[], int]], repeats: int, run_dir: Path) -> dict[str, float]:
    """Median nanoseconds an event of each case; the cases take turns."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, case in cases.items():
            shutil.rmtree(run_dir, ignore_errors=True)  # a run writes each outlier file once
            started_s = time.perf_counter()
            rows = case()
            if repeat:
                found[name].append((time.perf_counter() - started_s) / rows * 1e9)
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
