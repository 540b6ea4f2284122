"""The machine, and what it can do at most: products, memory, small operators, segment operators, copies."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.counting import counted
from benchmarks.gpu.processes import Channel, Setting
from benchmarks.gpu.steps import set_matmul_precision, timed
from common.errors import BadInputError
from common.transport import Arena
from services.trainer.copier import make_copier
from workloads.base.device import device_named
from workloads.base.segments import Segments, segment_max, segment_sum, spread
from workloads.muons.columns import MUONS

WIDTH, COMPARED = 128, 16
"""Columns of the segments' values, and those that are compared with the reference."""
LONG = 10_000  # muons of the largest events that the stream lets pass
TOLERANCE = 1e-4  # of the largest value: sums of thousands of float32 numbers in another order
_NVIDIA_SMI = "driver_version,power.limit,clocks.max.sm,clocks.max.memory,persistence_mode,mig.mode.current"
_PACKAGES = ("numpy", "triton", "pydantic", "pyarrow", "pyzmq", "nvidia-ml-py", "pytest")


def describe(setting: Setting, channel: Channel) -> None:
    """Row of texts. Raises BadInputError for a device that isn't there."""
    if setting.device == "auto":
        raise BadInputError("--device auto: name the device to measure, cuda, cuda:N or cpu")
    device = device_named(setting.device)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a CPU")
    row = {"device": processor}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        kind = f"{card.major}.{card.minor}, {card.multi_processor_count} multiprocessors"
        row |= {"device": card.name, "compute_capability": f"{kind}, {card.total_memory / 2**30:.1f} GiB"}
        command = ["nvidia-smi", f"--id=GPU-{card.uuid}", f"--query-gpu={_NVIDIA_SMI}", "--format=csv,noheader"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            row["driver"] = f"{_NVIDIA_SMI}: {done.stdout}"
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    versions = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    channel.row(
        "machine",
        **row,
        torch=f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        python=platform.python_version(),
        packages=", ".join(f"{name} {versions.get(name, 'is missing')}" for name in _PACKAGES),
        host=f"{processor}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, {platform.release()}",
        locked_memory="unlimited" if locked == resource.RLIM_INFINITY else f"{locked / 1024:,.0f} KiB",
    )


def ceilings(setting: Setting, channel: Channel) -> None:
    """Rows: rates of large products and copies, and the cost of the smallest operator."""
    device, many = torch.device(setting.device), 4 * setting.repeats
    for precision in ("float32", "tf32", "bf16") if setting.is_cuda else ("float32", "bf16"):
        set_matmul_precision(precision)
        for what, rows, width in (("matmul", setting.matrix, setting.matrix), ("layer", 64 * setting.matrix, WIDTH)):
            left, right = (torch.randn(size, width, device=device) for size in (rows, width))
            if precision == "bf16":
                left, right = left.bfloat16(), right.bfloat16()
            seconds, _ = timed(partial(torch.mm, left, right, out=torch.empty_like(left)), device, many, pick=min)
            shape, flops = f"{rows} × {width} by {width} × {width}", 2 * rows * width * width
            channel.row("ceilings", what=what, precision=precision, shape=shape, flop_per_s=flops / seconds)
    source = torch.zeros(setting.copy_mib << 20, dtype=torch.uint8, device=device)
    seconds, _ = timed(partial(torch.empty_like(source).copy_, source), device, many, pick=min)
    rate = 2 * source.nbytes / seconds
    channel.row("ceilings", what="device memory", shape="read and written", bytes_per_s=rate)
    one = torch.zeros(1, device=device)
    whole_s, host_s = (
        all_s / 200 for all_s in timed(lambda: [one.add_(1) for _ in range(200)], device, many, pick=min)
    )
    channel.row("ceilings", what="smallest operator", shape="200 in a row", seconds=whole_s, host_s=host_s)


def segments(setting: Setting, channel: Channel) -> None:
    """Rows: segment operators with their gradients on ragged events, and whether they equal a reference in float64."""
    device, random = torch.device(setting.device), torch.Generator().manual_seed(2)
    counts_E = (-4.0 * torch.rand(setting.events[0], generator=random).log()).long()
    counts_E[len(counts_E) // 2] = LONG
    particles = int(counts_E.sum())
    segments = Segments.from_counts(counts_E.to(device), particles)
    values_PD, values_ED = (torch.randn(num, WIDTH, generator=random) for num in (particles, len(counts_E)))

    def both(work: Callable[..., Tensor], values: Tensor, slope: Tensor, *more: Segments) -> tuple[Tensor, Tensor]:
        values = values.detach().requires_grad_(True)
        result = work(values, *more)
        return result.detach(), torch.autograd.grad(result, values, slope)[0]

    def plain_max(values_PC: Tensor) -> Tensor:
        return torch.segment_reduce(values_PC, "max", lengths=counts_E).nan_to_num(neginf=0.0)

    for name, ours, plain, values, slope in (
        ("sum", segment_sum, lambda v: torch.segment_reduce(v, "sum", lengths=counts_E), values_PD, values_ED),
        ("spread", spread, lambda v: v.repeat_interleave(counts_E, 0), values_ED, values_PD),
        ("max", lambda v, segments: segment_max(v, segments)[0], plain_max, values_PD, values_ED),
    ):
        work = partial(both, ours, values.to(device), slope.to(device), segments)
        expected = both(plain, values[:, :COMPARED].double(), slope[:, :COMPARED].double())
        pairs = [(one[:, :COMPARED].cpu().double(), other) for one, other in zip(work(), expected, strict=True)]
        apart = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
        if not apart <= TOLERANCE:
            channel.send("failures", f"segment {name}: value or gradient differs from float64 by {apart:.2g}")
        row = {"operator": f"{name} and gradient", "largest_difference": apart, "particles": particles}
        row |= {"seconds": timed(work, device, setting.repeats, 1.0)[0], "bytes": counted(work).num_bytes}
        channel.row("segments", **row)


def copies(setting: Setting, channel: Channel) -> None:
    """Rows: copies out of the arena, page-locked as the trainer does it, against memory that torch page-locks."""
    device, pageable = torch.device(setting.device), torch.ones(setting.copy_mib << 20, dtype=torch.uint8)
    target = torch.empty_like(pageable, device=device)
    with Arena.create(1, pageable.nbytes) as arena:
        copier = make_copier(arena, device, MUONS.step_columns)
        arena.slot(0)[:] = 1
        sources = {"pageable memory": pageable, "the arena (a memory file)": torch.from_numpy(arena.slot(0))}
        if setting.is_cuda:
            sources["page-locked by torch: the ceiling"] = pageable.pin_memory()
        for name, memory in sources.items():
            copy = partial(target.copy_, memory, non_blocking=True)
            whole_s, host_s = timed(copy, device, 4 * setting.repeats, pick=min)
            channel.row("copies", source=name, copied_bytes_per_s=target.nbytes / whole_s, host_s=host_s)
        del sources, memory, copy  # they have views of the arena
        copier.close()
