"""Speed of the step against that of cr_muons, the script that icestream replaces.

Question: 8,192 events of 4 muons on a CPU: cr_muons' own step (script_step.py) with its own widths, and with layers as
wide as ours; our step with the same penalty settings (4,096 muons, every second critic update), first with the same
recipe (five critic updates, no energy score), then with our own (three, and an energy score of 8 generated events).
Asked: 1.5 times the events/s at the same widths.

Command, from the repository's root:

    python -m benchmarks.bench_script_step [--events 8192] [--repeats 7] [--threads 2]

Table: seconds a step by the clock and in CPU time, medians, and the ratio of each round's pair to the script's step of
our widths. All take turns. The script has `--threads` threads inside of each operation and torch's own matrix products,
ours computes as many parts at the same time, as the trainer sets it up.

Reading: as in bench_step.py: CPU times of one thread where other work runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_step import MUONS, Times, make_batch, timed
from benchmarks.script_step import CRITIC_STEPS, PENALTY_MUONS, ScriptStep, Widths
from workloads.base.context import StepContext
from workloads.base.device import tune_cpu
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.wgan_losses import GradientPenalty

CPU = torch.device("cpu")
AGAINST = "cr_muons, widths of icestream"


def main() -> None:
    parser = argparse.ArgumentParser(description="The step against that of cr_muons.")
    parser.add_argument("--events", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    tune_cpu(CPU)
    tuned = torch.get_float32_matmul_precision()
    cases = make_cases(arguments.events, arguments.threads)
    found: dict[str, list[Times]] = {name: [] for name in cases}
    for repeat in range(arguments.repeats + 2):
        for name, step in cases.items():
            is_script = name.startswith("cr_muons")
            torch.set_num_threads(arguments.threads if is_script else 1)
            torch.set_float32_matmul_precision("highest" if is_script else tuned)
            times = timed(step, CPU)
            if repeat >= 2:  # the first two warm up
                found[name].append(times)
    print(f"{'':<44}{'s':>8}{'CPU s':>8}{'events/s':>12}{'ratio':>8}{'CPU':>6}")
    for name, rounds in found.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*rounds, strict=True))
        pairs = list(zip(found[AGAINST], rounds, strict=True))
        wall, cpu = (statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1))
        print(f"{name:<44}{wall_s:>8.3f}{cpu_s:>8.3f}{arguments.events / wall_s:>12,.0f}{wall:>8.2f}{cpu:>6.2f}")


def make_cases(num_events: int, threads: int) -> dict[str, Callable[[], object]]:
    """Name -> step on the same batch."""
    batch = make_batch(num_events, CPU)
    same = {"critic_steps": CRITIC_STEPS, "energy_score_weight": 0.0}
    network = WganConfig().network
    widths = Widths.all(network.hidden, (network.latent, 4))
    ours = {
        "icestream, recipe and penalty of cr_muons": make_task(threads, num_events, **same),
        "icestream, penalty of cr_muons": make_task(threads, num_events),
    }
    for task in ours.values():
        task.step(batch)  # the likelihood model's
    standardise = ours["icestream, penalty of cr_muons"].networks.standardise
    (microbatch,) = batch.microbatches
    inputs = (
        standardise.features(microbatch.particle_columns["muons"]),
        standardise.conditions(microbatch.event_columns["primary"]),
        microbatch.offsets_E1.diff(),
    )
    scripts = {
        "cr_muons": ScriptStep(inputs[1].shape[1], inputs[0].shape[1], Widths()),
        AGAINST: ScriptStep(inputs[1].shape[1], inputs[0].shape[1], widths),
    }
    cases: dict[str, Callable[[], object]] = {
        name: lambda script=script: script.step(*inputs) for name, script in scripts.items()
    }
    return cases | {name: lambda task=task: task.step(batch) for name, task in ours.items()}


def make_task(threads: int, num_events: int, **settings: Any) -> WganTask:
    """Task whose penalty sees as many muons as the script's: those of one part of PENALTY_MUONS."""
    config = WganConfig(chunk_particles=PENALTY_MUONS, likelihood_steps=1, **settings)
    task = WganTask(config, StepContext(CPU, seed=1, threads=threads))
    whole, calls, num_parts = task.networks.penalty, itertools.count(), max(num_events * MUONS // PENALTY_MUONS, 1)

    def penalty(part: Any, fake_PF: Tensor, mix_E: Tensor) -> GradientPenalty:
        if next(calls) % num_parts == 0:
            return whole(part, fake_PF, mix_E)
        nothing = torch.zeros((), requires_grad=True)
        return GradientPenalty(nothing, task.zero)

    task.networks.penalty = penalty
    return task


if __name__ == "__main__":
    main()
