"""Operators that a WGAN step dispatches, and time that the host needs for them.

Question: a GPU waits for the host if a step has many small operators. How many are there in a step of 128,000 events of
4 muons, and how long does the host take to dispatch them, if the batch is 1, 8 or 64 microbatches?
Asked: at most 1,200 operators (600 while scores, losses and dense layers had kernels of their own, up to 2026-11-29)
and 5 ms, whatever the number of microbatches.

Command, from the repository's root, on a quiet machine:

    python -m benchmarks.bench_operators [--microbatches 1 8 64] [--repeats 41] [--compile] [--empty]

Method: neither number depends on the size of the tensors, only on the number of parts. So the step is run on the CPU
with 2 events a microbatch, networks 8 wide, and a GPU's limit on the size of a part: 128,000 events of 4 muons are one.
Counted are calls that reach the dispatcher below autograd, in forward and backward passes and optimisers:

- operators: calls that compute or copy, about one kernel launch each on a GPU (two for a pooling of events of more than
  128 muons);
- views: calls that make another view of a tensor, or only allocate one;
- profiled: all operators that torch's profiler records, operators called by operators included. Of compiled code, it
  records what is not fused; the first two are not counted there, since torch compiles nothing while it counts.

With `--empty` the segment operators only allocate their results on the CPU, as a launch does on a GPU: there they are
written in torch's operators, whose host time a GPU does not have. The time that Triton needs for a launch is not in it.

A step with the gradient penalty of every second update in both parities: means of two steps. Host time: CPU time of
the thread, median of the steps; that of the small kernels themselves is in it, so that it is an upper limit.

Table: a row for each number of microbatches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench_step import make_batch
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.kernels.operators import LIKE
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.models.wgan import WganTask

CPU = torch.device("cpu")
EVENTS = 2
"""Events of a microbatch."""
PART_PARTICLES = 1 << 20
"""Particles of a part: more than those of 128,000 events, as on a GPU."""
WARM_UP_STEPS = 4

_NO_KERNELS = {
    *("detach", "_unsafe_view", "alias", "lift_fresh", "_record_function_enter_new", "_record_function_exit"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}


@dataclass(frozen=True)
class OperatorCount:
    """Calls of operators."""

    operators: float = 0
    views: float = 0


class OperatorCounter(TorchDispatchMode):
    """Counter of the operators that are called in its context, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.is_view or name in _NO_KERNELS:
            self.views += 1
        else:
            self.operators += 1
        return func(*args, **(kwargs or {}))


def operators_of(step: Callable[[], object], steps: int = 1) -> OperatorCount:
    """Operators of one of ``steps`` calls, in the mean."""
    with OperatorCounter() as counter:
        for _ in range(steps):
            step()
    return OperatorCount(counter.operators / steps, counter.views / steps)


def profiled_operators(step: Callable[[], object], steps: int = 1) -> float:
    """Operators that torch's profiler records in one of ``steps`` calls, in the mean."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    return sum(event.name.startswith("aten::") for event in profiler.events() or ()) / steps


@contextmanager
def empty_operators() -> Iterator[None]:
    """Context in which the segment operators allocate their results on the CPU, and compute nothing."""
    replaced = torch.library.Library("icestream", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each
        for name, like in LIKE.items():
            replaced.impl(name, like, "CPU")
    try:
        yield
    finally:
        replaced._destroy()


def host_ms(step: Callable[[], object], repeats: int) -> float:
    """CPU time of the calling thread for one call in ms, median."""
    times_s = []
    for _ in range(repeats):
        started_s = time.thread_time()
        step()
        times_s.append(time.thread_time() - started_s)
    return 1e3 * statistics.median(times_s)


def cut_batch(num_microbatches: int) -> Batch:
    """Batch of so many microbatches of EVENTS events each."""
    (whole,) = make_batch(EVENTS * num_microbatches, CPU).microbatches
    return Batch(tuple(whole.part(EVENTS * one, EVENTS * (one + 1)) for one in range(num_microbatches)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Operators and host time of a step.")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--empty", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network = MuonNetworkConfig(hidden=8)
    config = WganConfig(network=network, likelihood_steps=1, chunk_particles=PART_PARTICLES, compile=arguments.compile)
    print(f"{'microbatches':>12}{'operators':>12}{'views':>8}{'profiled':>10}{'host ms':>9}")
    rows = {}
    for number in arguments.microbatches:
        batch, task = cut_batch(number), WganTask(config, StepContext(CPU, seed=1))
        for _ in range(WARM_UP_STEPS):
            task.step(batch)
        with empty_operators() if arguments.empty else nullcontext():
            ms = host_ms(lambda: task.step(batch), arguments.repeats)  # noqa: B023  # called here only
        row: dict[str, float] = {}
        if not arguments.compile:
            row = asdict(operators_of(lambda: task.step(batch), 2))  # noqa: B023
        row["profiled"] = profiled_operators(lambda: task.step(batch), 2)  # noqa: B023
        row["host_ms"] = round(ms, 2)
        shown = [f"{row[name]:.0f}" if name in row else "-" for name in ("operators", "views", "profiled")]
        print(f"{number:>12}{shown[0]:>12}{shown[1]:>8}{shown[2]:>10}{ms:>9.1f}", flush=True)
        rows[number] = row
    print(
        json.dumps(
            {
                **{name: getattr(arguments, name) for name in ("compile", "empty")},
                "torch": torch.__version__,
                "steps": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
