"""Memory over thousands of ragged steps: flat, and not in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import simulated
from benchmarks.gpu.setting import SMALL, Setting
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

MOST_GROWN = 8 << 20
"""Bytes: CUDA's allocator reserves 2 MiB at a time."""
_LARGEST_EVENTS = 400
_LARGEST_EVERY = 50
_WARM = 0.2
"""Part of the steps after which all sizes have been there."""


def run(setting: Setting, channel: Channel) -> None:
    """Rows at a few steps: bytes allocated and reserved, and the allocator's troubles."""
    device = torch.device(setting.device)
    config = WganConfig.model_validate(setting.section | {"network": dict(SMALL), "critic_steps": 1})
    task = WganTask(config, StepContext(device, 1))
    events = simulated(20_000)
    rng = np.random.default_rng(3)
    warm_step, warm_bytes, steps = int(_WARM * setting.ragged_steps), 0, 0
    shown = {1, *(setting.ragged_steps * part // 5 for part in range(1, 6))}
    largest = largest_batch(events, device)
    while steps < setting.ragged_steps and channel.left_s > 2.0:
        task.step(largest if steps % _LARGEST_EVERY == 0 else ragged_batch(events, rng, device))
        steps += 1
        if steps == warm_step:
            warm_bytes = held_bytes(device)
        if steps in shown:
            channel.say(f"step {steps:,} of {setting.ragged_steps:,}")
            channel.row(steps=steps, **memory_of(device))
    if steps < setting.ragged_steps:
        channel.row(steps=steps, **memory_of(device))
        channel.leave_out(f"steps {steps + 1:,} to {setting.ragged_steps:,}: no time was left")
    if not setting.is_cuda:
        channel.leave_out("whether memory stays flat: the tests measure it on the CPU")
        return
    grown = held_bytes(device) - warm_bytes
    if steps > 2 * warm_step and grown > MOST_GROWN:
        channel.fail(f"memory grew by {grown / 2**20:.1f} MiB from step {warm_step:,} to {steps:,}")


def ragged_batch(events: Microbatch, rng: np.random.Generator, device: torch.device) -> Batch:
    """1 to 3 microbatches of 1 to 400 events from anywhere."""
    parts = []
    for _ in range(rng.integers(1, 4)):
        num_events = int(_LARGEST_EVENTS ** rng.random())
        first = int(rng.integers(events.num_events - num_events))
        parts.append(events.part(first, first + num_events).to(device))
    return Batch(tuple(parts))


def largest_batch(events: Microbatch, device: torch.device) -> Batch:
    """3 times the 400 events with the most muons: no other batch needs more memory."""
    ends, starts = events.host_offsets_E1[_LARGEST_EVENTS:], events.host_offsets_E1[:-_LARGEST_EVENTS]
    first = int(np.argmax(ends - starts))
    part = events.part(first, first + _LARGEST_EVENTS)
    return Batch(tuple(part.to(device) for _ in range(3)))


def held_bytes(device: torch.device) -> int:
    """Most bytes ever reserved on the card; on the CPU those of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_of(device: torch.device) -> dict[str, int]:
    """Allocator's statistics."""
    if device.type != "cuda":
        return {"resident_bytes": held_bytes(device)}
    torch.cuda.synchronize(device)
    statistics = torch.cuda.memory_stats(device)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "max_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "inactive_split_bytes": statistics["inactive_split_bytes.all.current"],
        "retries": statistics["num_alloc_retries"],
        "out_of_memory": statistics["num_ooms"],
    }
