"""Neutrino events per second that one core simulates and writes.

Question: are toy events of the direction workload made at 2,000 events/s or more on one core, writing included?

Command, from the repository's root:

    OMP_NUM_THREADS=1 python -m benchmarks.bench_direction_simulator [--events 8000] [--repeats 5]

Table: median over the repeats, after one run to warm up, of CPU time (not wall time) for a data set of two files in a
temporary directory; pyarrow's pools set to one thread. `written` is the share of that time which is not spent on the
same events alone.

Reading: half of the time is the expected light of every event in every sensor, a fifth the running sum that photons
are drawn by; almost half of the events drawn do not trigger. Writing takes a tenth. Results are in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from workloads.base.dataset import Written
from workloads.direction.simulator import EventsPlan, file_rows, write_dataset

AIM_EVENTS_PER_S = 2_000

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description="Neutrino events a second of the toy detector, on one core.")
    parser.add_argument("--events", type=int, default=8_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)

    events = arguments.events
    plans = {
        "natural mixture": EventsPlan(events, 2, seed=1),
        "a third added cascades": EventsPlan(events * 2 // 3, 2, seed=1, num_cascades=events // 3),
        "hexagonal array": EventsPlan(events, 2, seed=1, array="hex"),
    }
    print(f"{'events':<26}{'events/s':>10}{'pulses/s':>12}{'pulses/event':>14}{'bytes/event':>13}{'written':>9}")
    rates = {}
    for label, plan in plans.items():
        times_s = [timed(plan) for _ in range(arguments.repeats + 1)][1:]
        draw_s = statistics.median(cpu_seconds(partial(drawn, plan))[0] for _ in range(arguments.repeats))
        median_s, total = statistics.median(seconds for seconds, _ in times_s), times_s[0][1]
        rates[label] = round(total.num_events / median_s)
        print(
            f"{label:<26}{rates[label]:>10,}{total.num_particles / median_s:>12,.0f}"
            f"{total.num_particles / total.num_events:>14.1f}{total.num_bytes / total.num_events:>13.1f}"
            f"{1.0 - draw_s / median_s:>9.0%}"
        )
    aim_met = rates["natural mixture"] >= AIM_EVENTS_PER_S
    print(json.dumps({"benchmark": "direction_simulator", "events_per_s": rates, "aim_met": aim_met}))


def timed(plan: EventsPlan) -> tuple[float, Written]:
    """CPU seconds to write the data set, and what was written."""
    with tempfile.TemporaryDirectory() as folder:
        return cpu_seconds(lambda: write_dataset(Path(folder), plan))


def drawn(plan: EventsPlan) -> None:
    """The same events, without files."""
    for file_index in range(plan.num_files):
        for _ in file_rows(plan, file_index):
            pass


def cpu_seconds(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this process, and the result."""
    started_s = time.process_time()
    result = work()
    return time.process_time() - started_s, result


if __name__ == "__main__":
    main()
