"""Speed of one decoder against Arrow's, and its memory.

Question: Parquet in the production or converted schema to a filled slot, one thread, against `ParquetFile.iter_batches`
of the same columns and files. Asked of muons: 0.85 × unshuffled, 0.62 × with shuffle and outlier filter, 30 × against
reading row by row (`as_py`); of direction 0.5 ×, better 0.7 ×; memory above the start at most 3 × the unit.

Command, from the repository's root:

    python -m benchmarks.bench_decoder [--workload muons|direction] [--events N] [--repeats 11]

Table: median CPU time an event over the repeats, all cases but the last in turn, after one round to warm up;
`against Arrow` is the ratio of medians to `arrow`, which reads through a memory mapping, the faster of Arrow's two
modes; `arrow, defaults` opens the files as `ParquetFile(path)` does, and `arrow, checksums` verifies those of the
pages, as the decoder does (the files of muons have none). `shuffle costs`: median over the repeats of the
CPU time shuffled ÷ unshuffled - 1.

muons: files of the simulator's `bench` preset (4.6 muons an event, Snappy, no dictionary), units of 65,536 events, row
groups of 10,000 rows as the simulator writes them, and of 65,536; the filter sets aside events of more than 900 muons,
two or three a unit, and writes them to Parquet each time. direction: simulated events in the converted layout, units of
up to 20,480, row groups of 1,000, 4,000 (as the simulator writes them) and 8,192 rows; no event is an outlier.

Memory: the largest RssAnon of a fresh process that decodes all units, sampled every millisecond, minus the value
before the first unit; divided by the bytes of the largest unit in its slot. The slot belongs to the arena and is not
counted.

Reading: where there is a compiler, plain files (muons) are read in C++ (common/files/parquet/plain.py), and Arrow is no
limit; files stay open from turn to turn. Else the difference to Arrow is one pass of checks and one copy (unshuffled),
and the permutation, a gather and another copy (shuffled); of direction also the checksums of the pages, and the columns
that the decoder derives. With short row groups Arrow itself is slower (see docs/explanation/performance.md).
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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.config import StreamConfig
from common.files.by_content import read_footer
from common.files.layout import writer_options
from common.files.parquet.reader import ParquetReader
from common.files.rows import FILES
from common.memory import limit_math_threads, share_one_heap
from common.messages import Unit
from common.plan import SlotCapacity, StagedFile, plan_block
from common.schema import EventSchema
from common.unit_arrays import slot_bytes_needed
from services.decoder.decode import Decode
from workloads.direction import simulator as neutrinos
from workloads.direction.columns import DIRECTION
from workloads.direction.simulator import EventsPlan
from workloads.muons.columns import MUONS
from workloads.muons.simulator.config import PRESETS
from workloads.muons.simulator.write import DatasetPlan, write_dataset

COLUMNS = [column.name for column in MUONS.source_columns]
UNIT_EVENTS = 65_536
NUM_FILES = 2


@dataclass(frozen=True)
class Subject:
    """Subject of the benchmark."""

    schema: EventSchema
    events: int
    unit_events: int
    """Maximum events of a unit."""
    row_groups: tuple[int, ...]
    slot_mib: float
    set_aside_above: int
    """Particles of an event above which the shuffled case sets it aside; 0: none."""
    aims: dict[str, float]

    def stream(self, shuffle: bool) -> StreamConfig:
        """A unit closes once it has as many events as ``unit_events`` without the largest row group that fits twice."""
        return StreamConfig(
            block_files=NUM_FILES,
            unit_events=self.unit_events - max(rows for rows in self.row_groups if 2 * rows <= self.unit_events),
            shuffle=shuffle,
            max_particles_per_event=self.set_aside_above if shuffle else 0,
            slot_mib=self.slot_mib,
        )


MUON_AIMS = {"unshuffled": 0.85, "shuffled, filtered": 0.62, "row by row": 30.0, "memory": 3.0}
DIRECTION_AIMS = {"unshuffled": 0.7, "shuffled, filtered": 0.5, "memory": 3.0}
SUBJECTS = {
    "muons": Subject(MUONS, 655_360, UNIT_EVENTS, (10_000, UNIT_EVENTS), 16, 900, MUON_AIMS),
    "direction": Subject(DIRECTION, 40_960, 20_480, (1_000, 4_000, 8_192), 48, 0, DIRECTION_AIMS),
}


@dataclass
class Decoder:
    """A decoder's work without its process: units of these files into one slot."""

    subject: Subject
    files: Sequence[Path]
    shuffle: bool
    run_dir: Path
    units: list[Unit] = field(init=False)

    def __post_init__(self) -> None:
        schema, stream = self.subject.schema, self.subject.stream(self.shuffle)
        capacity = SlotCapacity(schema, stream)
        staged = [StagedFile(i, str(f), read_footer(f, schema, stream, capacity)) for i, f in enumerate(self.files)]
        self.units = plan_block(0, 0, 0, staged, capacity=capacity, stream=stream, seed=1)
        self.decode = Decode(schema, stream, 1, self.run_dir, ParquetReader(schema))
        self.slot = np.zeros(stream.slot_bytes, np.uint8)
        self.unit_bytes = 0

    def __call__(self) -> int:
        rows = 0
        for unit in self.units:
            layout, tally = self.decode(unit, self.slot)
            self.unit_bytes = max(self.unit_bytes, slot_bytes_needed(self.subject.schema, layout))
            rows += tally.rows_read
        return rows


def arrow(files: Sequence[Path], subject: Subject, **options: bool) -> int:
    """Arrow alone: decode every batch and drop it."""
    columns = sorted({column.path[0] for column in subject.schema.source_columns})
    rows = 0
    for path in files:
        with pq.ParquetFile(path, **options) as file:
            rows += sum(
                batch.num_rows for batch in file.iter_batches(subject.unit_events, columns=columns, use_threads=False)
            )
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


def memory_above_start(name: str, files: Sequence[Path], shuffle: bool) -> tuple[int, int]:
    """(bytes above the start, bytes of the largest unit); run it in a fresh process."""
    with tempfile.TemporaryDirectory() as run_dir:
        decoder = Decoder(SUBJECTS[name], files, shuffle, Path(run_dir))
        decoder.slot[:] = 1  # maps the slot's pages, as the arena does at its start
        few = MAKE[name](Path(run_dir) / "few", 20, 10)
        Decoder(SUBJECTS[name], few, shuffle, Path(run_dir))()  # loads all code
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
    parser.add_argument("--workload", choices=SUBJECTS, default="muons")
    parser.add_argument("--events", type=int)
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
    FILES.use()
    if arguments.memory_of:
        shuffle, *names = arguments.memory_of
        print(json.dumps(memory_above_start(arguments.workload, [Path(name) for name in names], shuffle == "shuffled")))
        return

    name, subject = arguments.workload, SUBJECTS[arguments.workload]
    ratios: dict[str, float] = {}
    print(f"{'row groups':>10}  {'case':<22}{'ns/event':>9}{'events/s':>12}{'against Arrow':>15}")
    with tempfile.TemporaryDirectory() as folder:
        files = MAKE[name](Path(folder) / "files", arguments.events or subject.events, subject.row_groups[0])
        for rows in subject.row_groups:
            rewrite(files, rows, subject)
            ratios |= compare(name, files, rows, arguments.repeats, Path(folder) / "run")
    print(json.dumps({"benchmark": "decoder", "workload": name, "ratios": ratios, "aims": subject.aims}))


def compare(name: str, files: Sequence[Path], rows: int, repeats: int, run_dir: Path) -> dict[str, float]:
    """Ratios of all cases for files with row groups of ``rows`` rows; prints the table's lines."""
    subject = SUBJECTS[name]
    cases: dict[str, Callable[[], int]] = {
        "arrow": lambda: arrow(files, subject, memory_map=True),
        "arrow, defaults": lambda: arrow(files, subject),
        "arrow, checksums": lambda: arrow(files, subject, memory_map=True, page_checksum_verification=True),
        "unshuffled": Decoder(subject, files, False, run_dir),
        "shuffled, filtered": Decoder(subject, files, True, run_dir),
    }
    all_ns = measure(cases, repeats, run_dir)
    if subject.schema is MUONS:
        # Last, and alone: millions of small objects leave a fragmented heap, in which everything is slower.
        all_ns |= measure({"row by row": lambda: row_by_row(files)}, min(repeats, 5), run_dir)
    ns = {case: statistics.median(values) for case, values in all_ns.items()}
    ratios = {f"{case}, {rows}": round(ns["arrow"] / value, 3) for case, value in ns.items()}
    for case, value in ns.items():
        spread = f"  {min(all_ns[case]):.1f} to {max(all_ns[case]):.1f}"
        print(f"{rows:>10}  {case:<22}{value:>9.1f}{1e9 / value:>12,.0f}{ns['arrow'] / value:>15.3f}{spread}")
    pairs = zip(all_ns["unshuffled"], all_ns["shuffled, filtered"], strict=True)
    costs = [shuffled / unshuffled - 1 for unshuffled, shuffled in pairs]
    print(f"{rows:>10}  shuffle costs {statistics.median(costs):+.1%} ({min(costs):+.1%} to {max(costs):+.1%})")
    ratios[f"shuffle costs, {rows}"] = round(statistics.median(costs), 3)
    for shuffle in ("unshuffled", "shuffled"):
        command = [sys.executable, "-m", "benchmarks.bench_decoder", "--workload", name, "--memory-of", shuffle]
        found = subprocess.run([*command, *map(str, files)], capture_output=True, check=True)
        above, unit = json.loads(found.stdout)
        print(
            f"{rows:>10}  memory, {shuffle:<13} {above / 2**20:.1f} MiB above the start, "
            f"{above / unit:.2f} × the unit of {unit / 2**20:.1f} MiB"
        )
        ratios[f"memory {shuffle}, {rows}"] = round(above / unit, 2)
    if "row by row" in ns:
        ratios[f"row by row, {rows}"] = round(ns["row by row"] / ns["shuffled, filtered"], 1)
        print(f"{rows:>10}  one decoder is {ratios[f'row by row, {rows}']:.0f} × as fast as row by row")
    return ratios


def make_files(folder: Path, events: int, rows_per_group: int) -> list[Path]:
    """Two files of the bench preset."""
    write_dataset(folder, PRESETS["bench"], DatasetPlan(events, NUM_FILES, seed=1))
    files = sorted(folder.rglob("*.parquet"))
    rewrite(files, rows_per_group, SUBJECTS["muons"])
    return files


def make_direction_files(folder: Path, events: int, rows_per_group: int) -> list[Path]:
    """Two files of simulated neutrino events."""
    neutrinos.write_dataset(folder, EventsPlan(events, NUM_FILES, seed=1))
    files = sorted(folder.rglob("*.parquet"))
    rewrite(files, rows_per_group, SUBJECTS["direction"])
    return files


MAKE = {"muons": make_files, "direction": make_direction_files}


def rewrite(files: Sequence[Path], rows_per_group: int, subject: Subject) -> None:
    """Write the files again with row groups of that many rows: muons as produced, the others as converted."""
    for path in files:
        table = pq.read_table(path)
        produced = {"compression": "snappy", "use_dictionary": False}
        options = produced if subject.schema is MUONS else writer_options(table.schema, "zstd")
        pq.write_table(table, path, row_group_size=rows_per_group, **options)


def measure(cases: dict[str, Callable[[], int]], repeats: int, run_dir: Path) -> dict[str, list[float]]:
    """Nanoseconds of CPU time an event of each case, by repeat; the cases take turns."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, case in cases.items():
            shutil.rmtree(run_dir, ignore_errors=True)  # a run writes each outlier file once
            started_s = time.process_time()
            rows = case()
            if repeat:
                found[name].append((time.process_time() - started_s) / rows * 1e9)
    return found


if __name__ == "__main__":
    main()
