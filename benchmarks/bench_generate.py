"""Speed of generating events on one core.

Question: primaries of the `bench` preset (4.6 muons an event) through a WGAN of the default size, numbers of muons from
its count head, one thread: events/s with and without writing Parquet. Asked: 200,000. Memory: growth of a process for
one event of 100,000 muons, and for a million events without muons.

Command, from the repository's root:

    python -m benchmarks.bench_generate [--events 100000] [--repeats 15] [--checkpoint RUN]

Table: medians over the repeats, both cases in turn after one round to warm up, by the clock and in CPU time of the
thread, since other work on the machine distorts the clock. The model has had 400 steps of its likelihood model, which
does not change the speed; --checkpoint takes a trained model.

Memory: growth of the largest resident set of a separate process, from before the first to after the last chunk.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.steps import simulated
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.device import tune_cpu
from workloads.muons.generation import CountRule, MuonBundles, generate_events, load_trained, write_bundles
from workloads.muons.models.config import WganConfig
from workloads.muons.models.likelihood_densities import MuonSampler
from workloads.muons.models.wgan import WganTask
from workloads.muons.primaries import Primaries, simulated_primaries

CPU = torch.device("cpu")
ASKED_EVENTS_PER_S = 200_000
SAMPLED = CountRule("sampled")
MEMORY_CASES = {"one event of 100,000 muons": (1, 100_000), "1,000,000 empty events": (1_000_000, 0)}


def made_sampler() -> MuonSampler:
    """Sampler of the default size, after a short training of the likelihood model on the preset."""
    task, events = WganTask(WganConfig(), StepContext(CPU, seed=0)), simulated(20_000)
    for step in range(400):
        first = step % 19 * 1024
        task.step(Batch((events.part(first, first + 1024),)))
    return MuonSampler.from_state(task.config.network, task.state_dict(), CPU)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU of this thread) in seconds."""
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall_s, time.thread_time() - cpu_s


def grown_mib(num_events: int, count: int) -> float:
    """Growth of this process's largest resident set, in MiB; call it once a process."""
    sampler = made_sampler()
    rule = CountRule("constant", constant=count, max_count=100_000)
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        for _ in generate_events(simulated_primaries("bench", 10, "vertical", 0), sampler, SAMPLED, "vertical", 0):
            pass
        Path("/proc/self/clear_refs").write_text("5")  # resets the largest resident set
        before = largest_resident_kib()
        primaries = simulated_primaries("bench", num_events, "vertical", 0)
        bundles = generate_events(primaries, sampler, rule, "vertical", 0)
        write_bundles(bundles, Path(folder) / "out.parquet", provenance={})
        return (largest_resident_kib() - before) / 1024


def largest_resident_kib() -> int:
    """Largest resident set of this process in KiB, since its start or its last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measure(sampler: MuonSampler, num_events: int, repeats: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each case and repeat."""
    primaries: list[Primaries] = list(simulated_primaries("bench", num_events, "vertical", 0))

    def events() -> Iterator[MuonBundles]:
        return generate_events(primaries, sampler, SAMPLED, "vertical", 0)

    def write() -> None:
        write_bundles(events(), folder / "out.parquet", provenance={})

    counts_E = np.concatenate([generated.counts_E for generated in events()])
    print(f"{num_events:,} events, {counts_E.mean():.2f} muons an event, {np.mean(counts_E == 0):.0%} empty")
    cases: dict[str, Callable[[], object]] = {
        "generated": lambda: [None for _ in events()],
        "generated and written": write,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, work in cases.items():
            if repeat:
                found[name].append(timed(work))
            else:
                work()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--memory-of", choices=list(MEMORY_CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tune_cpu(CPU)
    if arguments.memory_of:
        print(grown_mib(*MEMORY_CASES[arguments.memory_of]))
        return
    sampler = load_trained(arguments.checkpoint, CPU).generator if arguments.checkpoint else made_sampler()
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        found = measure(sampler, arguments.events, arguments.repeats, Path(folder))
    told: dict[str, object] = {"benchmark": "generate", "events": arguments.events, "repeats": arguments.repeats}
    print(f"{'':<24}{'events/s, wall':>16}{'events/s, CPU':>16}")
    for name, times in found.items():
        wall, cpu = (arguments.events / statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:<24}{wall:>16,.0f}{cpu:>16,.0f}")
        key = name.replace(" ", "_")
        told |= {f"{key}_per_s": round(wall), f"{key}_per_cpu_s": round(cpu)}
    print(f"asked: {ASKED_EVENTS_PER_S:,} events/s")
    for name in MEMORY_CASES:
        child = [sys.executable, "-m", "benchmarks.bench_generate", "--memory-of", name]
        mib = float(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        print(f"memory grows by {mib:,.0f} MiB for {name}")
        told[f"mib_for_{name.replace(' ', '_').replace(',', '')}"] = round(mib, 1)
    print(json.dumps({**told, "torch": torch.__version__, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
