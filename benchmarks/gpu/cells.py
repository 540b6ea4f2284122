"""Measured cells of the step's table: variant × precision × number of events."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu.channel import Channel, Row
from benchmarks.gpu.counting import Counts, counted
from benchmarks.gpu.data import batch_of, simulated
from benchmarks.gpu.processes import last_line
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import median, once
from benchmarks.gpu.variants import SHIPPED, Variant
from common.errors import BadInputError
from workloads.base.batch import Batch

_CALLS = 6
"""Steps that are still to come after the first: warm-up, measured ones, and those that are counted."""


class Cell(NamedTuple):
    """One cell."""

    variant: Variant
    precision: str
    events: int

    def __str__(self) -> str:
        return f"{self.variant.name}, {self.precision}, {self.events:,} events"


def cells(variants: Sequence[Variant], setting: Setting) -> Iterator[Cell]:
    """Cells, most important first: size by size, in the default precision before the others."""
    for events in setting.events:
        found = [
            (rank, Cell(variant, precision, events))
            for variant in variants
            for rank, precision in enumerate(variant.precisions(is_cuda=setting.is_cuda))
        ]
        yield from (cell for _, cell in sorted(found, key=lambda one: one[0]))


def measure_cells(variants: Sequence[Variant], setting: Setting, channel: Channel) -> None:
    """A row for each cell, as far as there is time."""
    channel.say(f"simulating {max(setting.events):,} events")
    events = simulated(max(setting.events))
    batch, batch_events, s_per_event = None, 0, 0.0
    impossible: set[str] = set()
    broken: set[str] = set()
    for cell in cells(variants, setting):
        if cell.variant.name in impossible:
            continue
        if cell.variant.name in broken:
            channel.leave_out(f"{cell}: this variant failed before")
            continue
        if not channel.has(1.0 + (1 + _CALLS) * s_per_event * cell.events, str(cell)):
            continue
        if batch is None or batch_events != cell.events:
            batch = None  # frees the memory of the one before
            batch, batch_events = batch_of(events, cell.events, torch.device(setting.device)), cell.events
        channel.say(str(cell) + (": its start may take a minute" if cell.variant.is_apart else ""))
        try:
            row = _measured(cell, setting, batch, channel)
        except BadInputError as error:  # no compiler, for example
            channel.leave_out(f"{cell.variant.name}: {error}")
            impossible.add(cell.variant.name)
            continue
        except Exception as error:  # noqa: BLE001  whatever a variant raises, the others are measured
            channel.fail(f"{cell}: {last_line(error)}")
            broken.add(cell.variant.name)
            continue
        channel.row(**row)
        if isinstance(row.get("seconds"), float):
            s_per_event = float(row["seconds"] or 0.0) / cell.events


def _measured(cell: Cell, setting: Setting, batch: Batch, channel: Channel) -> Row:
    row: Row = {"variant": cell.variant.name, "precision": cell.precision, "events": cell.events}
    row["particles"] = batch.num_particles
    for part in (_times, _counts_of):
        try:
            row |= part(cell, setting, batch, channel)
        except torch.OutOfMemoryError:
            row["note"] = "out of memory"
        _forget()  # outside of the block above nothing refers to the tensors of a failed step
        if "note" in row:
            break
    return row


def _times(cell: Cell, setting: Setting, batch: Batch, channel: Channel) -> Row:
    """Times and memory."""
    device = torch.device(setting.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    steps = cell.variant.make(setting, cell.precision, batch)
    first_s = once(steps.step, device).whole_s
    next_s = once(steps.step, device).whole_s if cell.variant.is_apart else first_s
    if not channel.has(_CALLS * next_s, f"{cell}, after a first step of {first_s:.1f} s"):
        return {"first_s": first_s, "note": "no time for more steps"}
    limit_s = max(3.0, channel.left_s / 10)
    times = median(steps.all, device, repeats=setting.repeats, warm_up=1, limit_s=limit_s)
    row: Row = {"seconds": times.whole_s / steps.cycle, "host_s": times.host_s / steps.cycle, "first_s": first_s}
    if device.type == "cuda":
        row["allocated_bytes"] = torch.cuda.max_memory_allocated(device)
        row["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    return row


def _counts_of(cell: Cell, setting: Setting, batch: Batch, channel: Channel) -> Row:
    """Counts of a step, the mean over a cycle. Compiled code has the matrix products of the shipped step."""
    channel.say(f"{cell}: counting")
    variant = SHIPPED if cell.variant.is_apart else cell.variant
    steps = variant.make(setting, cell.precision, batch)
    steps.step()  # the first one makes the optimisers' state
    counts = Counts(*(count // steps.cycle for count in counted(steps.all)))
    if cell.variant.is_apart:
        return {"flops": counts.flops}
    return {"operators": counts.operators, "bytes": counts.num_bytes, "flops": counts.flops}


def _forget() -> None:
    """Free what the cell before has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
