"""Step of the muon models in bfloat16, against the one in float32.

Question: what does `trainer.precision = "bf16"` cost or save on this machine, in time and in bytes that are moved?

Command, from the repository's root:

    python -m benchmarks.bench_precision [--events 2048] [--repeats 5] [--device cpu]

Table: for each model, seconds of CPU time of the process for a step (on a GPU: by the clock), median, the variants in
turn with one thread; ratio to float32 with torch's layers, median over the turns; operators and bytes of a step for
each muon (benchmarks/gpu/counting.py), with torch's layers.

Reading: on a CPU the layers in C++, which the trainer uses in float32, are not counted in bytes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.bench_step import make_batch, timed
from benchmarks.gpu.counting import counted
from workloads.base.context import StepContext
from workloads.base.device import tune_cpu
from workloads.base.native import layers
from workloads.muons.models.config import LikelihoodConfig, WganConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.wgan import WganTask

MODELS: dict[str, Callable[[StepContext], Any]] = {
    "wgan": lambda context: WganTask(WganConfig(likelihood_steps=1), context),
    "likelihood": lambda context: LikelihoodTask(LikelihoodConfig(), context),
}
BYTES_STEPS = 2
"""Steps that are counted: of two in a row, one has a gradient penalty more."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps in bfloat16 against those in float32.")
    parser.add_argument("--events", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    tune_cpu(device)
    torch.set_num_threads(1)
    batch = make_batch(arguments.events, device)
    has_library = device.type == "cpu" and layers.use()
    layers.use_torch()
    print(f"{'model':<12}{'variant':<24}{'s':>8}{'ratio':>8}{'operators':>11}{'KiB a muon':>12}")
    for model, make in MODELS.items():
        tasks = {"float32": make(StepContext(device, 1)), "bf16": make(StepContext(device, 1, bf16=True))}
        if has_library:
            tasks["float32, layers in C++"] = make(StepContext(device, 1))
        times: dict[str, list[float]] = {variant: [] for variant in tasks}
        for turn in range(arguments.repeats + 1):
            for variant, task in tasks.items():
                if "C++" in variant:
                    layers.use()
                for _ in range(BYTES_STEPS):
                    found = timed(lambda task=task: task.step(batch), device)
                    if turn > 0:
                        times[variant].append(found.cpu_s if device.type == "cpu" else found.wall_s)
                layers.use_torch()
        for variant, task in tasks.items():
            ratio = statistics.median(one / other for one, other in zip(times[variant], times["float32"], strict=True))
            line = f"{model:<12}{variant:<24}{statistics.median(times[variant]):>8.3f}{ratio:>8.2f}"
            if "C++" not in variant:
                counts = counted(lambda task=task: [task.step(batch) for _ in range(BYTES_STEPS)])
                each = BYTES_STEPS * batch.num_particles
                line += f"{counts.operators // BYTES_STEPS:>11,}{counts.num_bytes / each / 1024:>12.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
