"""Variants of the step that start slowly, apart from the others: a compiler's failure must not cost their figures."""

from __future__ import annotations

import torch

from benchmarks.bench_step import compare
from benchmarks.gpu.cells import measure_cells
from benchmarks.gpu.channel import Channel
from benchmarks.gpu.data import batch_of, simulated
from benchmarks.gpu.precision import set_matmul_precision
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import VARIANTS
from common.errors import BadInputError


def run(setting: Setting, channel: Channel) -> None:
    """Rows of cells.py; `first_s` contains the time of compiling, less if the cache has it from another time."""
    measure_cells([one for one in VARIANTS if one.is_apart], setting, channel)
    _compare(min(setting.events), torch.device(setting.device), channel)


def _compare(num_events: int, device: torch.device, channel: Channel) -> None:
    """Row that says whether compiled code gives the losses of the plain step."""
    what = "losses of the plain step, to 1e-5"
    if not channel.has(20.0, f"compiled: {what}"):
        return
    channel.say(f"compiled: {what}")
    set_matmul_precision("float32")
    outcome = "the same"
    try:
        compare(batch_of(simulated(num_events), num_events, device), device, compiled=True)
    except BadInputError as error:
        channel.leave_out(f"compiled: {what}: {error}")
        return
    except SystemExit as error:
        outcome = "they differ"
        channel.fail(f"compiled: {what}: {error}")
    channel.row(variant="compiled", precision="float32", events=num_events, note=f"{what}: {outcome}")
