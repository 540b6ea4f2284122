"""Speed of the model's step, against the plain one of `reference_step.py`.

Question: one step of generator and critic with the default settings on 8,192 events of 4 muons on a CPU, or on 128,000
events on a GPU: the shipped step and the plain one, with the same weights, batch and noise. Asked: 3 times as fast on 2
CPU cores, 8 times on one GPU.

Command, from the repository's root:

    python -m benchmarks.bench_step [--events 8192] [--repeats 7] [--threads 2] [--device cpu] [--compile]

Table: seconds a step, median, and the ratio of each pair, by the clock and in CPU time of the process; the two take
turns. The plain step has `--threads` threads inside of each operation and torch's own matrix products, the shipped one
computes as many parts of the batch at the same time, as the trainer sets it up (workloads/base/device.py). Then the
rate of the step's matrix products as a fraction of the machine's own rate for them (measured here, in float32); on a
GPU also its memory.

Reading: under other load the plain step's threads wait for each other at every operation, and the ratio is far too
large (8 instead of 2), in CPU time, too: quote it from a quiet machine, or with `--threads 1` in CPU time.

Before the measurement, one SGD step of each is compared: losses to 1e-5, norms of gradients to 1e-4, since a rounded
number beyond a kink changes an event's gradient.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from benchmarks.reference_step import ReferenceStep, use_sgd
from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.device import device_named, tune_cpu
from workloads.base.native.layers import LAYERS
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

MUONS = 4
WIDTH = WganConfig().network.hidden


class Times(NamedTuple):
    """Time of a step: by the clock, and of the process on all cores."""

    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description="The shipped step against the plain one.")
    parser.add_argument("--events", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    try:
        device = device_named(arguments.device)
    except BadInputError as error:
        parser.error(str(error))
    batch = make_batch(arguments.events, device)
    tune_cpu(device)
    tuned = torch.get_float32_matmul_precision()
    compare(batch, device, compiled=arguments.compile)

    config = WganConfig(compile=arguments.compile, likelihood_steps=1)
    shipped = WganTask(config, StepContext(device, seed=1, threads=arguments.threads))
    plain = ReferenceStep(config, device, seed=1)
    pairs: list[tuple[Times, Times]] = []
    for repeat in range(arguments.repeats + 2):
        torch.set_num_threads(arguments.threads)
        torch.set_float32_matmul_precision("highest")  # torch's default
        plain_s = timed(lambda: plain.step(batch), device)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision(tuned)
        shipped_s = timed(lambda: shipped.step(batch), device)
        if repeat >= 2:  # the first step is the likelihood model's, the second warms up
            pairs.append((plain_s, shipped_s))
            print(line(pairs[-1:]), flush=True)
    print(f"median: {line(pairs)}")
    shipped_wall_s = statistics.median(times.wall_s for _, times in pairs)
    flops, rate = matrix_flops(shipped, batch), matrix_rate(device, arguments.threads)
    print(
        f"matrix products: {flops / 1e9:.1f} GFLOP a step, {flops / shipped_wall_s / 1e9:.0f} GFLOP/s of "
        f"{rate / 1e9:.0f} that this machine reaches: {flops / shipped_wall_s / rate:.2f}"
    )
    if device.type == "cuda":
        print(f"memory, most reserved: {torch.cuda.max_memory_reserved(device) / 2**30:.2f} GiB")


def make_batch(num_events: int, device: torch.device) -> Batch:
    """Batch of events of 4 muons each, with features of realistic size."""
    random = torch.Generator().manual_seed(3)
    primary = torch.stack(
        [
            10 ** (5 + 2 * torch.rand(num_events, generator=random)),
            torch.rand(num_events, generator=random),
            torch.where(torch.rand(num_events, generator=random) < 0.5, 1.0, 56.0),
            1500 + 500 * torch.rand(num_events, generator=random),
        ],
        1,
    )
    num_muons = MUONS * num_events
    energy = 1 + 10 ** (1 + 0.5 * torch.randn(num_muons, generator=random))
    muons = torch.cat([energy.unsqueeze(1), 10 * torch.randn(num_muons, 2, generator=random)], 1)
    offsets = torch.arange(0, num_muons + 1, MUONS)
    return Batch(
        (
            Microbatch(
                epoch=0,
                unit=0,
                index=0,
                offsets_E1=offsets.to(device),
                host_offsets_E1=offsets.numpy(),
                event_columns={"primary": primary.to(device)},
                particle_columns={"muons": muons.to(device)},
                num_events=num_events,
                num_particles=num_muons,
            ),
        )
    )


def compare(batch: Batch, device: torch.device, *, compiled: bool) -> None:
    """Exit if the losses of the two steps differ."""
    config = WganConfig(
        critic_steps=1,
        likelihood_steps=1,
        compile=compiled,
        chunk_particles=batch.num_particles,  # one part: parts draw their noise one after the other
    )
    shipped = use_sgd(WganTask(config, StepContext(device, seed=1)), 1e-3)
    plain = ReferenceStep(config, device, seed=1, sgd_rate=1e-3)
    for _ in range(2):  # the first is the likelihood model's
        found, expected = shipped.step(batch), plain.step(batch)
    for name, value in expected.items():
        share = 1e-4 if name.endswith("_grad_norm") else 1e-5
        if abs(float(found[name]) - value) > share * max(1.0, abs(value)):
            raise SystemExit(f"{name}: {float(found[name])} shipped, {value} plain")


def timed(step: Callable[[], object], device: torch.device) -> Times:
    """Time of one step."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Times(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def line(pairs: Sequence[tuple[Times, Times]]) -> str:
    """Medians of the plain and the shipped step, and of their ratios."""
    (plain_s, shipped_s) = (
        Times(*(statistics.median(column) for column in zip(*times, strict=True))) for times in zip(*pairs, strict=True)
    )
    wall, cpu = (statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1))
    return (
        f"plain {plain_s.wall_s:.3f} s, shipped {shipped_s.wall_s:.3f} s, ratio {wall:.2f}; "
        f"CPU {plain_s.cpu_s:.3f} s, {shipped_s.cpu_s:.3f} s, ratio {cpu:.2f}"
    )


def matrix_flops(task: WganTask, batch: Batch) -> float:
    """Floating-point operations of the step's matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    alone = WganTask(task.config, StepContext(task.device, seed=1))  # one thread: the counter counts its own only
    alone.step(batch)  # of the likelihood model
    LAYERS.used = None  # products in C++ are not counted
    with FlopCounterMode(display=False) as counter:
        alone.step(batch)
    return float(counter.get_total_flops())


def matrix_rate(device: torch.device, threads: int) -> float:
    """FLOP/s of a matrix product like the step's, best of 20."""
    torch.set_num_threads(threads)
    rows = torch.randn(8192 if device.type == "cpu" else 1 << 19, WIDTH, device=device)
    weights = torch.randn(WIDTH, WIDTH, device=device)
    best_s = min(timed(lambda: rows @ weights, device).wall_s for _ in range(20))
    torch.set_num_threads(1)
    return 2 * rows.shape[0] * WIDTH**2 / best_s


if __name__ == "__main__":
    main()
