"""Estimate of the WGAN's step on a GPU, from the bytes that its code moves and its operations, before a measurement.

Question: how long does a step of 128,000 events take, if the bandwidth of the card's memory is its limit? Counted on
the CPU, with smaller batches, which move as much for each muon; no GPU is needed.

    python -m benchmarks.gpu.estimate          # some minutes: the step is compiled for the CPU

Table: for each variant its operators, KiB and MFLOP a muon, and the expected time on an H100 and an H200. Bytes are
whole inputs and outputs of each operator; those of compiled code are counted by torch's compiler for the CPU, which
fuses about what it fuses on a GPU.

Reading: the time is that of the bytes at the parts of the bandwidth that steps of another WGAN of ours reached on an
H100 (benchmarks/results/2026-11-27-gpu-nvidia-h100-80gb-hbm3-step.md). Matrix products need less everywhere. The host
may need more: 20 to 80 µs an operator. Those of compiled code are fewer, and not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch._inductor.compile_fx as compiler
from torch import Tensor
from torch._inductor import metrics

from benchmarks.gpu.counting import Counts, counted
from benchmarks.gpu.steps import batch_of, simulated
from benchmarks.reference_step import ReferenceStep
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.wgan_networks import WganEvents

EVENTS, BATCH_EVENTS = 4096, 128_000
MUONS_OF_AN_EVENT = 4.6
"""Of the simulator's `bench` preset in the mean."""
BYTES_PER_S = {"H100": 2.71e12, "H200": 4.3e12}
"""Copies on the card, read and written: measured (H200: by others)."""
REACHED = {"plain": 0.48, "float32": 0.83, "bf16": 0.63}
"""Part of it that the bytes of a step had: plain in float32, shipped in tf32 and in bfloat16."""
CPU = torch.device("cpu")


class Pass(NamedTuple):
    """Networks that are compiled, with the arguments that a step gives them."""

    name: str
    times: float
    """In a step, in the mean."""
    arguments: tuple[object, ...]
    of: str
    """Networks whose weights it is differentiated by; empty: by its first argument."""


def main() -> None:
    torch.set_num_threads(2)
    compiler.inductor_metrics_log.setLevel(logging.INFO)  # without it nothing is counted
    compiler.inductor_metrics_log.propagate = False
    torch._inductor.config.force_disable_caches = True
    batch = batch_of(simulated(EVENTS), EVENTS, "cpu")
    head = "| variant | operators | KiB a muon | MFLOP a muon | H100, ms | H200, ms | H100, events/s | measured |"
    print(head, "| --- " * (head.count("|") - 1) + "|", sep="\n")
    plain = counts_of(ReferenceStep(_config(), CPU, 1).step, batch)
    print(line("plain, float32", plain, batch, REACHED["plain"]), flush=True)
    for precision in ("float32", "bf16"):
        task = _task(precision)
        counts = counts_of(task.step, batch)
        name = "tf32" if precision == "float32" else precision
        print(line(f"shipped, {name}", counts, batch, REACHED[precision]), flush=True)
        compiled = _task(precision, compile=True)
        compiled.step(batch)
        compiled.networks.is_compiled = True
        for one in passes(task, batch):
            eager = counted(partial(differentiated, task, one))
            metrics.reset()
            differentiated(compiled, one)
            fewer = one.times * (eager.num_bytes - metrics.num_bytes_accessed)
            counts = Counts(0, round(counts.num_bytes - fewer), counts.flops)
        print(line(f"compiled, {name}", counts, batch, REACHED[precision]), flush=True)


def counts_of(step: Callable[[Batch], object], batch: Batch) -> Counts:
    """Return the counts of a step, the mean of two: every other critic update has a penalty."""
    for _ in range(2):  # the first is the likelihood model's, the second makes the optimisers' state
        step(batch)
    first, second = (counted(lambda: step(batch)) for _ in range(2))
    return Counts(*((one + other) // 2 for one, other in zip(first, second, strict=True)))


def passes(task: WganTask, batch: Batch) -> list[Pass]:
    """Return all passes through compiled networks."""
    networks = task.networks
    part: WganEvents = networks.events(batch.microbatches[0], torch.Generator().manual_seed(1))
    with torch.no_grad():
        fake_PG = networks.fake(part, 0)
    steps, sets = task.config.critic_steps, networks.generated_events
    drawn = (one[-sets:].flatten(0, 1) for one in (part.inputs_SEI, part.drawn_SPF))
    both = torch.cat([part.real_PG, fake_PG]), *part.twice
    return [
        Pass("_correct", 1, (*drawn, part.segments.repeated(sets)), "correction"),
        Pass("_raw_scores", steps, both, "critic"),
        Pass("_raw_scores", 1, (fake_PG.clone().requires_grad_(), part.conditions_EC, part.segments), ""),
        Pass("_slope", steps / task.config.gp_every, (fake_PG, part.conditions_EC, part.segments), "critic"),
    ]


def differentiated(task: WganTask, one: Pass) -> None:
    """Do a pass, forwards and backwards."""
    networks = task.networks
    with networks._precision():
        result: Tensor = getattr(networks, one.name)(*one.arguments)
    by = list(getattr(networks, one.of).parameters()) if one.of else [one.arguments[0]]
    torch.autograd.grad(result, by, torch.ones_like(result), allow_unused=True)


def line(name: str, counts: Counts, batch: Batch, reached: float) -> str:
    """Return a row of the table."""
    muons, operators = batch.num_particles, f"{counts.operators:,}" if counts.operators else "–"
    ms = {
        card: 1e3 * counts.num_bytes / muons * MUONS_OF_AN_EVENT * BATCH_EVENTS / (reached * bytes_per_s)
        for card, bytes_per_s in BYTES_PER_S.items()
    }
    return (
        f"| {name} | {operators} | {counts.num_bytes / muons / 1024:.0f} | {counts.flops / muons / 1e6:.2f} |"
        f" {ms['H100']:.0f} | {ms['H200']:.0f} | {1e3 * BATCH_EVENTS / ms['H100']:,.0f} | not measured |"
    )


def _config(*, compile: bool = False) -> WganConfig:
    return WganConfig(likelihood_steps=1, chunk_particles=1 << 30, compile=compile)


def _task(precision: str, *, compile: bool = False) -> WganTask:
    return WganTask(_config(compile=compile), StepContext(CPU, 1, bf16=precision == "bf16"))


if __name__ == "__main__":
    main()
