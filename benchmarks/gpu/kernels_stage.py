"""Kernels of a step by torch's profiler: number, time, and those that take the most of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import batch_of, simulated
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS, Steps
from common.errors import BadInputError

MOST = 8
"""Kernels listed by name."""


def run(setting: Setting, channel: Channel) -> None:
    """Rows: all kernels of a variant's step, then its most expensive ones."""
    device = torch.device(setting.device)
    num_events = setting.events[0]
    channel.say(f"simulating {num_events:,} events")
    batch = batch_of(simulated(num_events), num_events, device)
    for variant in VARIANTS:
        precision = variant.precisions(is_cuda=setting.is_cuda)[0]
        what = f"{variant.name}, {precision}, {num_events:,} events"
        if not channel.has(15.0 if variant.is_apart else 3.0, what):
            continue
        channel.say(what)
        try:
            steps = variant.make(setting, precision, batch)
        except BadInputError as error:  # no compiler
            channel.leave_out(f"{what}: {error}")
            continue
        for _ in range(2):
            steps.all()
        kernels = kernels_of(steps)
        row = {"variant": variant.name, "precision": precision, "events": num_events}
        calls, seconds = (sum(column) for column in zip(*kernels.values(), strict=True)) if kernels else (0, 0.0)
        channel.row(**row, kernel="all", calls=float(calls), seconds=float(seconds))
        for name, (calls, seconds) in sorted(kernels.items(), key=lambda one: -one[1][1])[:MOST]:
            channel.row(**row, kernel=short(name), calls=calls, seconds=seconds)


def kernels_of(steps: Steps) -> dict[str, tuple[float, float]]:
    """Name of a kernel, or of a copy on the device, -> (calls, seconds) in a step, the mean over a cycle."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        steps.all()
        torch.cuda.synchronize()
    return {
        name: (calls / steps.cycle, seconds / steps.cycle) for name, (calls, seconds) in summed(found.events()).items()
    }


def summed(events: Any) -> dict[str, tuple[int, float]]:
    """Calls and seconds by name, of the profiler's events on the device; ranges of the user's are no kernels."""
    sums: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in events:
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            calls, seconds = sums[event.name]
            sums[event.name] = calls + 1, seconds + event.time_range.elapsed_us() / 1e6
    return dict(sums)


def short(name: str) -> str:
    """Name of a kernel that fits into a table."""
    name = name.replace("|", "/").removeprefix("void ")
    return name if len(name) <= 90 else name[:60] + " … " + name[-27:]
