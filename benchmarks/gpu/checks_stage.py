"""Checks of the step on the device: no host sync, the same bits in deterministic mode, the plain step's losses."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.bench_step import compare
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import as_fed, batch_of, simulated
from benchmarks.gpu.precision import set_matmul_precision
from benchmarks.gpu.processes import last_line
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import median
from benchmarks.gpu.variants import SEED
from services.trainer.environment import WORKSPACE_VARIABLE, be_deterministic
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

_STEPS = 3
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one critic step, clipped": {"critic_steps": 1, "gradient_clip": 1.0},
}


def run(setting: Setting, channel: Channel) -> None:
    """Rows: check, outcome."""
    os.environ.setdefault(WORKSPACE_VARIABLE, ":4096:8")  # before cuBLAS starts, in this process
    device = torch.device(setting.device)
    num_events = min(setting.events)
    events = simulated(num_events)
    whole = [batch_of(events, num, device) for num in (num_events, num_events // 3)]
    batches = [as_fed(batch, max(batch.num_particles // 3, 1)) for batch in whole]

    def check(name: str, work: Callable[[], str]) -> None:
        channel.say(name)
        try:
            channel.row(check=name, outcome=work())
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it raises, the others are made
            channel.row(check=name, outcome="failed")
            channel.fail(f"{name}: {last_line(error)}")

    set_matmul_precision("float32")
    check("losses of the plain step, to 1e-5", lambda: _agreement(batch_of(events, num_events, device), device))
    if not setting.is_cuda:
        channel.leave_out("no host sync: a CPU has none")
    for name, section in CONFIGURATIONS.items() if setting.is_cuda else ():
        for precision in ("float32", "bf16"):
            make = partial(_task, setting, section, device, precision)
            check(f"no host sync, {name}, {precision}", partial(_no_sync, make, batches))
    be_deterministic()
    for precision in ("float32", "bf16"):
        check(f"deterministic mode, {precision}", partial(_same_bits, setting, batches, precision))


def _task(setting: Setting, section: dict[str, Any], device: torch.device, precision: str = "float32") -> WganTask:
    config = WganConfig.model_validate(setting.section | section)
    return WganTask(config, StepContext(device, SEED, bf16=precision == "bf16"))


def _agreement(batch: Batch, device: torch.device) -> str:
    compare(batch, device, compiled=False)
    return "the same"


def _no_sync(make: Callable[[], WganTask], batches: list[Batch]) -> str:
    """Steps in which CUDA's runtime raises if the host waits. The first ones fit the standardisation, which does."""
    task = make()
    for batch in batches:
        task.step(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches * _STEPS:
            task.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return f"none in {_STEPS * len(batches)} steps"


def _same_bits(setting: Setting, batches: list[Batch], precision: str) -> str:
    """Two trainings from one seed; raises RuntimeError if a weight differs, or an operator has no such kernel."""
    device = torch.device(setting.device)
    tasks = [_task(setting, {}, device, precision) for _ in range(2)]
    for task in tasks:
        for batch in batches * _STEPS:
            task.step(batch)
    for (name, one), other in zip(_weights(tasks[0]), (weight for _, weight in _weights(tasks[1])), strict=True):
        if not torch.equal(one, other):
            raise RuntimeError(f"{name} differs by {float((one - other).abs().max()):.3g}")
    seconds = median(lambda: tasks[0].step(batches[0]), device, repeats=setting.repeats).whole_s
    return f"the same bits; {1000 * seconds:.2f} ms a step of {batches[0].num_events:,} events"


def _weights(task: WganTask) -> list[tuple[str, torch.Tensor]]:
    networks = task.networks.modules()
    return [(f"{name}.{key}", value) for name, one in networks.items() for key, value in one.state_dict().items()]
