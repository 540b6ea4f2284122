"""Events per second that one core simulates and writes.

Question: is demo data written faster than any part of the pipeline reads it? The aim is 250,000 events/s for the
`bench` preset.

Command, from the repository's root:

    python -m benchmarks.bench_simulator [--events 200000] [--repeats 5]

Table: median over the repeats, after one run to warm up, of wall time for `write_dataset` into a temporary
directory; one thread, pyarrow's pools set to one. `written` is the share of that time spent on writing; the rest
is the time of drawing the same tables alone.

Reading: an event costs 0.4 to 0.5 µs and each of its muons a little under 0.1 µs, about half of it for writing.
Compare events/s for presets of few muons (`corsika`, `h3a`), muons/s for the others. Results are in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from workloads.muons.simulator.config import PRESETS
from workloads.muons.simulator.write import DatasetPlan, _tables, write_dataset

AIM_EVENTS_PER_S = 250_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Events a second of the simulator, on one core.")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)

    cases = [(name, name, 0) for name in PRESETS] + [("bench, 10 rows a shower", "bench", 10)]
    print(
        f"{'preset':<24}{'events/s':>12}{'muons/s':>12}{'MB/s':>8}{'muons/event':>13}{'bytes/event':>13}{'written':>9}"
    )
    rates = {}
    for label, preset, depths in cases:
        plan = DatasetPlan(arguments.events, 2, seed=1, depths_per_shower=depths)
        wall_s, draw_s, total = [], [], None
        for repeat in range(arguments.repeats + 1):
            with tempfile.TemporaryDirectory() as directory:
                started_s = time.perf_counter()
                total = write_dataset(Path(directory), PRESETS[preset], plan)
                if repeat:
                    wall_s.append(time.perf_counter() - started_s)
                    draw_s.append(time_drawing(preset, plan))
        median_s = statistics.median(wall_s)
        rates[label] = round(total.num_events / median_s)
        print(
            f"{label:<24}{rates[label]:>12,}{total.num_particles / median_s:>12,.0f}"
            f"{total.num_bytes / median_s / 1e6:>8.1f}{total.num_particles / total.num_events:>13.2f}"
            f"{total.num_bytes / total.num_events:>13.1f}{1.0 - statistics.median(draw_s) / median_s:>9.0%}"
        )
    print(json.dumps({"benchmark": "simulator", "events_per_s": rates, "aim_met": rates["bench"] >= AIM_EVENTS_PER_S}))


def time_drawing(preset: str, plan: DatasetPlan) -> float:
    """Seconds to draw the tables of a data set without writing them."""
    started_s = time.perf_counter()
    for file_index in range(plan.num_files):
        for _ in _tables(PRESETS[preset], plan, file_index):
            pass
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
