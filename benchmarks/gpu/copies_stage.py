"""Copies to the device: out of the arena, page-locked as the trainer does it, against memory that torch page-locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import simulated
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import best, median
from common.schema import UnitArrays
from common.transport import Arena
from services.trainer.copier import Copier, make_copier
from workloads.muons.columns import MUONS

SLOTS = 2
_BYTES_OF_AN_EVENT = 256
"""More than an event takes here, in the mean."""


def run(setting: Setting, channel: Channel) -> None:
    """Rows: source, bytes of a copy, bytes/s."""
    device = torch.device(setting.device)
    num_bytes = setting.copy_mib << 20
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    repeats = 4 * setting.repeats

    def measure(source: str, memory: Tensor) -> None:
        seconds = best(lambda: target.copy_(memory, non_blocking=True), device, repeats=repeats)
        channel.row(source=source, bytes=num_bytes, seconds=seconds, bytes_per_s=num_bytes / seconds)

    channel.say(f"copies of {setting.copy_mib} MiB")
    pageable = torch.ones(num_bytes, dtype=torch.uint8)
    measure("pageable memory", pageable)
    if setting.is_cuda:
        measure("page-locked by torch: the ceiling", pageable.pin_memory())
    with Arena.create(SLOTS, num_bytes) as arena:
        copier = make_copier(arena, device, MUONS.step_columns)
        arena.slot(0)[:] = 1
        measure("the arena (a memory file)", torch.from_numpy(arena.slot(0)))
        channel.say("microbatches through the trainer's copier")
        unit = _fill(arena, setting)
        times = median(_copies(copier, unit), device, repeats=repeats)
        channel.row(
            source=f"a unit of {unit.num_microbatches} microbatches, by the copier",
            bytes=unit.num_bytes,
            seconds=times.whole_s,
            bytes_per_s=unit.num_bytes / times.whole_s,
            host_s=times.host_s,
        )
        del unit  # it has views of the arena
        copier.close()


class _Unit(NamedTuple):
    arrays: UnitArrays
    num_microbatches: int
    num_bytes: int


def _copies(copier: Copier, unit: _Unit) -> Callable[[], object]:
    """Work that copies a unit as the trainer does: one transfer, its microbatches, the hand-over."""

    def copy() -> None:
        copied = copier.begin(unit.arrays, 0, 0)
        for index in range(unit.num_microbatches):
            copied.microbatch(index)
        copier.hand_over(copier.mark())
        copied.wait()  # then the slot is released

    return copy


def _fill(arena: Arena, setting: Setting) -> _Unit:
    """Simulated events in the second slot, as a decoder leaves them, without ids."""
    events = simulated(min(setting.events[0], arena.slot_bytes // _BYTES_OF_AN_EVENT))
    bounds = np.cumsum([0, *(part.num_events for part in events.chunks(setting.microbatch_particles))])
    primary, muons = events.event_columns["primary"].numpy(), events.particle_columns["muons"].numpy()
    views, first, slot = [], 0, arena.slot(1)
    for column in (events.host_offsets_E1, primary, muons):
        view = slot[first : first + column.nbytes].view(column.dtype).reshape(column.shape)
        view[:] = column
        views.append(view)
        first += -(-column.nbytes // 64) * 64
    offsets, primary, muons = views
    arrays = UnitArrays(offsets, bounds, {"muons": muons}, {"primary": primary})
    return _Unit(arrays, len(bounds) - 1, sum(view.nbytes for view in views))
