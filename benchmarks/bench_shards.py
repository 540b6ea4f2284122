"""Cost of shards on one machine.

Question: how much slower is a run whose stream is divided into S shards, each with a fetcher, decoders and an arena of
its own, than the same run with one? Both have the same files and number of decoders in all, and a trainer that only
counts (`--model none`), so that nothing but the pipeline is measured.

    python -m benchmarks.bench_shards [--shards 4] [--events 400000] [--epochs 20] [--repeats 5]

Table: events/s of the session (`session_events_per_s`), and events per second of CPU time of all processes, for each
side, medians with the smallest and the largest; the sides take turns. The last line is JSON.
Reading: the ratio of CPU times is what a shard costs. By the clock, several fetchers may also use cores that one leaves
idle.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

FILES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    found: dict[int, list[tuple[float, float]]] = {1: [], arguments.shards: []}
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        data = Path(folder) / "data"
        write_dataset(data, preset("bench"), DatasetPlan(arguments.events, FILES, seed=1))
        for turn in range(arguments.repeats):
            for shards, rates in found.items():
                run_dir = Path(folder) / f"{turn}-{shards}"
                rates.append(run(data, run_dir, shards, arguments.shards, arguments.epochs))
    print(f"{'shards':>6}  {'events/s':>34}  {'events per s of CPU':>34}")
    for shards, rates in found.items():
        print(f"{shards:>6}  {_spread([wall for wall, _ in rates]):>34}  {_spread([cpu for _, cpu in rates]):>34}")
    pairs = list(zip(*found.values(), strict=True))
    ratios = [statistics.median(many[which] / one[which] for one, many in pairs) for which in range(2)]
    print(f"{arguments.shards} shards against one: {ratios[0]:.2f} by the clock, {ratios[1]:.2f} by CPU time")
    print(json.dumps({"benchmark": "shards", "ratios": ratios, "found": found, "python": platform.python_version()}))


def run(data: Path, run_dir: Path, shards: int, decoders: int, epochs: int) -> tuple[float, float]:
    """Events a second of the session, and events a second of CPU time of all processes."""
    command = [sys.executable, "-m", "icestream", "run", "-i", str(data), "--run-dir", str(run_dir), "--model", "none"]
    command += ["--decoders", str(decoders // shards), "--set", f"epochs={epochs}", "--set", f"stream.shards={shards}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}")
    summary = json.loads((run_dir / "summary.json").read_text())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return summary["session_events_per_s"], summary["events_read"] / cpu_s


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
