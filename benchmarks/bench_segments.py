"""Cost of the segment operators on a CPU: of their registration, of sorting, and of all of them in a WGAN step.

Questions: what does it cost to call a registered operator instead of its function? Is one sort by an integer faster
than two? Which share of a step do the operators take, and so how much could a faster kernel save?

    python -m benchmarks.bench_segments [--events 2048] [--repeats 15]

Table: CPU microseconds a call, medians of turns, on events of 4 particles in 128 columns (the first two rows: on 8
particles in all, where the call itself is all there is); then each operator's CPU time as a share of a step of
`--events` events. One thread. The last line is JSON.
Reading: registration costs what the first row is above the second, times the calls of a step. On a GPU:
`benchmarks/gpu`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_step import make_batch
from workloads.base.context import StepContext
from workloads.base.kernels import torch_kernels
from workloads.base.segments import Segments, pool, pool_with_argmax, sort_within_events, spread, unpool
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

MUONS, WIDTH = 4, 128
POOLS = ("mean", "max")
CPU = torch.device("cpu")
SHOWN = ("icestream::", "aten::argsort", "aten::_embedding_bag")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the segment operators.")
    parser.add_argument("--events", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, float] = medians_us(calls(arguments.events), arguments.repeats)
    for name, time_us in table.items():
        print(f"{name:42} {time_us:10.1f} µs")
    shares = shares_of_step(arguments.events)
    for name, share in shares.items():
        print(f"{name:42} {share:10.1%} of a step")
    print(json.dumps({"us": table, "shares": shares}))


def calls(num_events: int) -> dict[str, Callable[[], object]]:
    """Functions to be timed, by their row."""
    few = Segments.from_counts(torch.tensor([2, 3, 1, 2]), 8)
    few_ED = torch.randn(4, 8)
    segments = Segments.from_counts(torch.full((num_events,), MUONS), MUONS * num_events)
    values_PD, values_ED = torch.randn(MUONS * num_events, WIDTH), torch.randn(num_events, WIDTH)
    slopes_EX, key_P = torch.randn(num_events, 2 * WIDTH), torch.randn(MUONS * num_events)
    _, argmax_ED = pool_with_argmax(values_PD, segments, POOLS)
    of_few = (few.event_P, few.counts_E, few.starts_E, few.particles_P)
    return {
        "tiny spread, registered": lambda: spread(few_ED, few),
        "tiny spread, its function": lambda: torch_kernels.unpool(few_ED, None, *of_few, "sum"),
        "spread": lambda: spread(values_ED, segments),
        "sum": lambda: pool(values_PD, segments, ("sum",)),
        "mean and maximum": lambda: pool(values_PD, segments, POOLS),
        "unpool mean and maximum": lambda: unpool(slopes_EX, segments, POOLS, argmax_ED),
        "sort, one by an integer": lambda: sort_within_events(key_P, segments),
        "sort, two": lambda: two_sorts(key_P, segments),
    }


def two_sorts(key_P: Tensor, segments: Segments) -> Tensor:
    """The same permutation by sorts of the keys and then of the events."""
    by_key_P = key_P.argsort(stable=True)
    return by_key_P[segments.event_P[by_key_P].argsort(stable=True)]


def medians_us(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU time of each, which take turns; small ones many times a turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            number = 500 if name.startswith("tiny") else 1
            started_s = time.thread_time()
            for _ in range(number):
                function()
            times[name].append(1e6 * (time.thread_time() - started_s) / number)
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def shares_of_step(num_events: int) -> dict[str, float]:
    """CPU time of each operator's function and of sorting, as a fraction of that of a step."""
    task, batch = WganTask(WganConfig(), StepContext(CPU, seed=1)), make_batch(num_events, CPU)
    for _ in range(3):
        task.step(batch)
    with torch.profiler.profile() as profile:
        task.step(batch)
    of_step: dict[str, float] = {}
    total_us = 0.0
    for event in profile.events() or ():
        total_us += event.self_cpu_time_total
        if event.name.startswith(SHOWN) and not is_inside_itself(event):
            of_step[event.name] = of_step.get(event.name, 0.0) + event.cpu_time_total
    return {name: time_us / total_us for name, time_us in of_step.items()}


def is_inside_itself(event: Any) -> bool:
    """True for the operator that a registered operator calls below its derivative: itself."""
    parent = event.cpu_parent
    while parent is not None and parent.name != event.name:
        parent = parent.cpu_parent
    return parent is not None


if __name__ == "__main__":
    main()
