"""Speed of generating events on one core, against the matrix products alone.

Question: primaries of the `bench` preset (4.6 muons an event) through a WGAN of the default size, numbers of muons from
its count head, one thread: events/s with and without writing Parquet. Asked: 450,000. And the time of generating
against that of its matrix products alone: of the count head, of the event network of each event with muons, and of the
three layers of each muon, in the same pieces, without biases, activations, normalisation, noise and gathers. Asked: at
most 1.5. Memory: growth of a process for one event of 100,000 muons, and for a million events without muons.

Command, from the repository's root:

    python -m benchmarks.bench_generate [--events 100000] [--repeats 15] [--checkpoint RUN]

Table: medians over the repeats, all cases in turn after one round to warm up; `ratio` is the median of the ratios of
each repeat's pair, in CPU time of the thread, since other work on the machine distorts wall time. The networks are
untrained except the count head (400 steps), which does not change the speed; --checkpoint takes a trained model.

Memory: growth of the largest resident set of a separate process, from before the first to after the last chunk.

Reading: besides the products there is memory traffic: each muon's hidden rows are written or read six times more
(gather, bias, two activations), and noise. On a core with a busy sibling or cache these passes slow down more than
the products, and the ratio rises.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workloads.base.device import tune_cpu
from workloads.muons.generation import (
    CHUNK_EVENTS,
    CountRule,
    MuonBundles,
    generate_events,
    load_trained,
    write_bundles,
)
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan_networks import CPU_PIECES, Dense, WganSampler
from workloads.muons.primaries import Primaries, simulated_primaries
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries, simulate

ASKED_EVENTS_PER_S, ASKED_RATIO = 450_000, 1.5
SAMPLED = CountRule("sampled")
MEMORY_CASES = {"one event of 100,000 muons": (1, 100_000), "1,000,000 empty events": (1_000_000, 0)}


def made_sampler() -> WganSampler:
    """Sampler of the default size, standardised and with a count head trained on the preset."""
    torch.manual_seed(0)
    simulator = preset("bench")
    rng = np.random.default_rng(1)
    bundles = simulate(sample_primaries(20_000, simulator, rng), simulator, rng)
    primary_E4, counts_E = torch.from_numpy(bundles.primary_E4), torch.from_numpy(bundles.counts_E.astype(np.int64))
    sampler = WganSampler(WganConfig(), torch.device("cpu"))
    sampler.standardise.fit_conditions(primary_E4)
    sampler.standardise.fit_features(torch.from_numpy(bundles.muons_P3.copy()))
    conditions_EC = sampler.standardise.conditions(primary_E4)
    optimiser = torch.optim.Adam(sampler.count_head.requires_grad_(True).parameters(), lr=2e-3)
    for _ in range(400):
        rows = torch.randint(len(counts_E), (1024,))
        optimiser.zero_grad()
        (sampler.count_head.loss(conditions_EC[rows], counts_E[rows]) / len(rows)).backward()
        optimiser.step()
    sampler.count_head.requires_grad_(False)
    return sampler


def products_of(sampler: WganSampler, chunk_counts: Sequence[np.ndarray]) -> Callable[[], None]:
    """All matrix products for these chunks of events, in the same pieces, into the same few buffers."""
    network, head = sampler.generator, sampler.count_head
    linear = network.muon_input.linear
    hidden, last = network.muon_network
    width = linear.out_features
    of_events = [layer.linear.weight.t() for layer in network.event_network if isinstance(layer, Dense)]
    of_events.append(linear.weight[:, :width].t())
    of_noise, of_hidden, of_last = linear.weight[:, width:].t(), hidden.linear.weight.t(), last.weight
    of_counts = [head.network[0].weight.t(), head.network[2].weight.t(), head.output.weight.t()]
    rows = max(CPU_PIECES.events, CPU_PIECES.counts, CPU_PIECES.particles)

    def with_buffers(weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """(weight, result), the first result being the input of the first product."""
        inputs = [(torch.eye(1), torch.randn(rows, len(weights[0])))]
        return inputs + [(weight, torch.empty(rows, weight.shape[1])) for weight in weights]

    def chain(layers: Sequence[tuple[Tensor, Tensor]], num: int) -> None:
        for (_, source), (weight, into) in itertools.pairwise(layers):
            torch.mm(source[:num], weight, out=into[:num])

    count_layers, event_layers = with_buffers(of_counts), with_buffers(of_events)
    noise, features = torch.randn(rows, len(of_noise)), torch.empty(len(of_last), rows)

    def sizes(total: int, at_once: int) -> Iterator[int]:
        return (min(at_once, total - first) for first in range(0, total, at_once))

    first, second = torch.empty(rows, width), torch.empty(rows, width)

    def run() -> None:
        for counts in chunk_counts:
            for num in sizes(len(counts), CPU_PIECES.counts):
                chain(count_layers, num)
            present = counts[counts > 0]
            for begin in range(0, len(present), CPU_PIECES.events):
                piece = present[begin : begin + CPU_PIECES.events]
                chain(event_layers, len(piece))
                for num in sizes(int(piece.sum()), CPU_PIECES.particles):
                    torch.mm(noise[:num], of_noise, out=first[:num])
                    torch.mm(first[:num], of_hidden, out=second[:num])
                    torch.mm(of_last, second[:num].t(), out=features[:, :num])

    return run


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


def measure(sampler: WganSampler, num_events: int, repeats: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each case and repeat."""
    primaries: list[Primaries] = list(simulated_primaries("bench", num_events, "vertical", 0))

    def events() -> Iterator[MuonBundles]:
        return generate_events(primaries, sampler, SAMPLED, "vertical", 0)

    def write() -> None:
        write_bundles(events(), folder / "out.parquet", provenance={})

    counts_E = np.concatenate([generated.counts_E for generated in events()])
    chunk_counts = [counts_E[first : first + CHUNK_EVENTS] for first in range(0, num_events, CHUNK_EVENTS)]
    print(f"{num_events:,} events, {counts_E.mean():.2f} muons an event, {np.mean(counts_E == 0):.0%} empty")
    products = products_of(sampler, chunk_counts)

    def alone() -> None:
        with torch.inference_mode():
            products()

    cases: dict[str, Callable[[], object]] = {
        "generated": lambda: [None for _ in events()],
        "products alone": alone,
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
    tune_cpu(torch.device("cpu"))
    if arguments.memory_of:
        print(grown_mib(*MEMORY_CASES[arguments.memory_of]))
        return
    sampler = made_sampler()
    if arguments.checkpoint:
        trained = load_trained(arguments.checkpoint, torch.device("cpu")).generator
        if not isinstance(trained, WganSampler):
            parser.error(f"{arguments.checkpoint}: not a WGAN")
        sampler = trained
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        found = measure(sampler, arguments.events, arguments.repeats, Path(folder))
    told: dict[str, object] = {"benchmark": "generate", "events": arguments.events, "repeats": arguments.repeats}
    print(f"{'':<24}{'events/s, wall':>16}{'events/s, CPU':>16}{'ratio, CPU':>12}{'ratio, wall':>13}")
    for name, times in found.items():
        wall, cpu = (arguments.events / statistics.median(column) for column in zip(*times, strict=True))
        pairs = list(zip(times, found["products alone"], strict=True))
        ratio_wall, ratio_cpu = (statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1))
        print(f"{name:<24}{wall:>16,.0f}{cpu:>16,.0f}{ratio_cpu:>12.2f}{ratio_wall:>13.2f}")
        key = name.replace(" ", "_")
        told |= {f"{key}_per_s": round(wall), f"{key}_per_cpu_s": round(cpu), f"{key}_ratio": round(ratio_cpu, 3)}
    print(f"asked: {ASKED_EVENTS_PER_S:,} events/s; ratio {ASKED_RATIO}")
    for name in MEMORY_CASES:
        child = [sys.executable, "-m", "benchmarks.bench_generate", "--memory-of", name]
        mib = float(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        print(f"memory grows by {mib:,.0f} MiB for {name}")
        told[f"mib_for_{name.replace(' ', '_').replace(',', '')}"] = round(mib, 1)
    print(json.dumps({**told, "torch": torch.__version__, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
