"""Speed of the model's step, against the plain one of `reference_step.py`.

Question: one step (5 critic updates with gradient penalty, generator, count head) on 8,192 events of 4 muons on a CPU,
or on 128,000 events on a GPU: the shipped step and the plain one, with the same weights, batch and noise.
Asked: 2 times as fast on 2 CPU cores, 8 times on one GPU.

Command, from the repository's root:

    python -m benchmarks.bench_step [--events 8192] [--repeats 7] [--threads 2] [--device cpu] [--compile]

Table: seconds a step, median, and the ratio of each pair; the two take turns. The plain step has `--threads` threads
inside of each operation, the shipped one computes as many parts of the batch at the same time. Then the rate of the
step's matrix products as a fraction of the machine's own rate for them (measured here, in float32); on a GPU also its
memory.

Reading: under other load the plain step's threads wait for each other at every operation, and the ratio is far too
large (8 instead of 2): quote it from a quiet machine only.

Before the measurement, one SGD step of each is compared: losses to 1e-5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.reference_step import ReferenceStep
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.task import WganTask

MUONS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="The shipped step against the plain one.")
    parser.add_argument("--events", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    batch = make_batch(arguments.events, device)
    compare(batch, device, compiled=arguments.compile)

    config = WganConfig(compile=arguments.compile)
    shipped = WganTask(config, StepContext(device, seed=1, threads=arguments.threads))
    plain = ReferenceStep(config, device, seed=1)
    pairs = []
    for repeat in range(arguments.repeats + 2):
        torch.set_num_threads(arguments.threads)
        plain_s = timed(lambda: plain.step(batch), device)
        torch.set_num_threads(1)
        shipped_s = timed(lambda: shipped.step(batch), device)
        if repeat >= 2:  # the first two warm up
            pairs.append((plain_s, shipped_s))
            print(f"plain {plain_s:.3f} s, shipped {shipped_s:.3f} s, ratio {plain_s / shipped_s:.2f}", flush=True)
    plain_s, shipped_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"median: plain {plain_s:.3f} s, shipped {shipped_s:.3f} s, ratio of pairs {ratio:.2f}")
    flops, rate = matrix_flops(shipped, batch), matrix_rate(device, arguments.threads)
    print(
        f"matrix products: {flops / 1e9:.1f} GFLOP a step, {flops / shipped_s / 1e9:.0f} GFLOP/s of "
        f"{rate / 1e9:.0f} that this machine reaches: {flops / shipped_s / rate:.2f}"
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
    energy = 10 ** (1 + 0.5 * torch.randn(num_muons, generator=random))
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
        optimiser="sgd",
        generator_lr=1e-3,
        critic_lr=1e-3,
        critic_steps=1,
        compile=compiled,
        chunk_particles=batch.num_particles,  # one part: parts draw their noise one after the other
    )
    found = WganTask(config, StepContext(device, seed=1)).step(batch)
    for name, value in ReferenceStep(config, device, seed=1).step(batch).items():
        if abs(float(found[name]) - value) > 1e-5 * max(1.0, abs(value)):
            raise SystemExit(f"{name}: {float(found[name])} shipped, {value} plain")


def timed(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of one step."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started_s = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_s


def matrix_flops(task: WganTask, batch: Batch) -> float:
    """Floating-point operations of the step's matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    alone = WganTask(task.config, StepContext(task.device, seed=1))  # one thread: the counter counts its own only
    alone.step(batch)
    with FlopCounterMode(display=False) as counter:
        alone.step(batch)
    return float(counter.get_total_flops())


def matrix_rate(device: torch.device, threads: int) -> float:
    """FLOP/s of a matrix product like the step's, best of 20."""
    torch.set_num_threads(threads)
    rows = torch.randn(8192 if device.type == "cpu" else 1 << 19, 128, device=device)
    weights = torch.randn(128, 128, device=device)
    best_s = min(timed(lambda: rows @ weights, device) for _ in range(20))
    torch.set_num_threads(1)
    return 2 * rows.shape[0] * 128 * 128 / best_s


if __name__ == "__main__":
    main()
