"""Rates: what the machine can do at most, steps of the models on simulated events, and kernels of a step."""

from __future__ import annotations

import gc
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.counting import counted
from benchmarks.gpu.processes import Channel, Setting
from benchmarks.reference_step import ReferenceStep
from common.errors import BadInputError
from common.transport import Arena
from services.trainer.copier import make_copier
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.device import device_named
from workloads.base.segments import Segments, segment_max, segment_sum, spread
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import GEOMETRY_FILE, write_geometry
from workloads.direction.models.config import SetsConfig
from workloads.direction.models.task import DirectionTask
from workloads.direction.simulator import EventsPlan, file_rows
from workloads.muons.columns import MUONS
from workloads.muons.models.config import LikelihoodConfig, WganConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.wgan import WganTask
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries, simulate

SEED, MOST_KERNELS = 1, 8
CYCLE = WganConfig().gp_every // gcd(WganConfig().gp_every, WganConfig().critic_steps)
"""Steps after which the same work comes again: not each has the same number of gradient penalties."""
Work = Callable[[], object]
Model = WganTask | ReferenceStep
WIDTH, COMPARED = 128, 16  # columns of the segments' values, and those that are compared with the reference
LONG = 10_000  # muons of the largest events that the stream lets pass
TOLERANCE = 1e-4  # of the largest value: sums of thousands of float32 numbers in another order
_NVIDIA_SMI = "driver_version,power.limit,clocks.max.sm,clocks.max.memory,persistence_mode,mig.mode.current"
_PACKAGES = ("numpy", "triton", "pydantic", "pyarrow", "pyzmq", "nvidia-ml-py", "pytest")


def simulated(num_events: int, seed: int = 1) -> Microbatch:
    """Return muon events of the simulator's `bench` preset, in one microbatch, on the host."""
    config, rng = preset("bench"), np.random.default_rng(seed)
    bundles = simulate(sample_primaries(num_events, config, rng), config, rng)
    return _microbatch(bundles.counts_E, {"primary": bundles.primary_E4}, {"muons": bundles.muons_P3})


def directions(plan: EventsPlan) -> Microbatch:
    """Return neutrino events in one microbatch, on the host. Their classical fits are random numbers: a step takes as
    long with them, and they need no scipy."""
    (rows,) = file_rows(plan, 0)
    events = rows.events
    fits = np.random.default_rng(SEED).standard_normal((len(rows), len(CLASSICAL_FITS)), np.float32)
    opens_P = np.concatenate([[True], np.diff(events.sensor_P) != 0])
    opens_P[np.cumsum(events.counts_E)[:-1]] = True
    source_E3, pulses_P2 = -events.truth.travel_E3, np.stack([events.time_ns_P, events.charge_pe_P], 1)
    of_events = {"source_direction": source_E3.astype(np.float32), "classical_fits": fits, "enriched": rows.added_E}
    of_events["true_energy"] = events.truth.energy_gev_E.astype(np.float32)
    flags: dict[str, Any] = {"sensor": events.sensor_P, "auxiliary": events.auxiliary_P, "opens_sensor": opens_P}
    return _microbatch(events.counts_E, of_events, flags | {"pulses": pulses_P2})


def _microbatch(counts_E: Any, *columns: dict[str, Any]) -> Microbatch:
    """Microbatch with these columns of events and of particles."""
    offsets_E1 = np.concatenate([[0], np.cumsum(counts_E)])
    events, particles = (
        {key: torch.from_numpy(one.reshape(len(one), -1)) for key, one in of.items()} for of in columns
    )
    sizes = len(counts_E), int(offsets_E1[-1])
    return Microbatch(0, 0, 0, torch.from_numpy(offsets_E1), offsets_E1, events, particles, *sizes)


def batch_of(events: Microbatch, num_events: int, device: str, max_particles: int = sys.maxsize) -> Batch:
    """Return the first ``num_events`` on the device, in microbatches of at most ``max_particles``."""
    return Batch(tuple(part.to(torch.device(device)) for part in events.part(0, num_events).chunks(max_particles)))


def set_matmul_precision(precision: str) -> None:
    """Set torch's matrix products, as the trainer does."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def once(work: Work, device: torch.device) -> tuple[float, float]:
    """Return the seconds until the device has done the work, and until the call returned: where the device has enough
    to do, its queue may fill, and the host waits for it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    wait(device)
    begun_s = time.perf_counter()
    work()
    returned_s = time.perf_counter()
    wait(device)
    return time.perf_counter() - begun_s, returned_s - begun_s


def timed(work: Work, device: torch.device, repeats: int, limit_s: float = 5.0, pick: Any = median) -> list[float]:
    """Return medians of `once` over ``repeats`` calls, of fewer if they take longer than ``limit_s``."""
    work()
    end_s, found = time.perf_counter() + limit_s, [once(work, device)]
    while len(found) < repeats and time.perf_counter() < end_s:
        found.append(once(work, device))
    return [pick(column) for column in zip(*found, strict=True)]


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
        size = f"{card.multi_processor_count} multiprocessors, {card.total_memory / 2**30:.1f} GiB"
        row |= {"device": card.name, "compute_capability": f"{card.major}.{card.minor}, {size}"}
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
    channel.row("ceilings", what="device memory", shape="read and written", bytes_per_s=2 * source.nbytes / seconds)
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


class Cell(NamedTuple):
    """A row of the step's table: ``shipped``, ``as fed`` (in microbatches, as the trainer gets it), ``compiled`` or
    ``plain`` (of benchmarks/reference_step.py); ``float32``, ``tf32`` (on CUDA) or ``bf16``; events."""

    variant: str
    precision: str
    events: int

    def model(self, setting: Setting) -> Model:
        """Return a new model whose first step is the likelihood model's. Sets torch's precision."""
        is_compiled, device = self.variant == "compiled", torch.device(setting.device)
        if is_compiled:
            torch.compiler.reset()  # else another model's code counts against the limit of recompilations
        config = WganConfig(network=dict(setting.network), likelihood_steps=1, compile=is_compiled)
        set_matmul_precision(self.precision)
        if self.variant == "plain":
            return ReferenceStep(config, device, SEED)
        return WganTask(config, StepContext(device, SEED, bf16=self.precision == "bf16"))


EAGER = ("shipped", ""), ("plain", "float32"), ("shipped", "bf16"), ("plain", ""), ("as fed", ""), ("as fed", "bf16")
"""Variants and precisions, most telling first; without precision: the default one."""


def step(setting: Setting, channel: Channel, variants: Sequence[tuple[str, str]] = EAGER) -> None:
    """Row for each variant and size that isn't known; then, for compiled code, rows of its kernels."""
    largest, device = setting.events[0], torch.device(setting.device)
    channel.send("say", f"simulating {largest:,} events")
    events, default = simulated(largest), setting.default_precision
    cells = [Cell(variant, precision or default, size) for size in setting.events for variant, precision in variants]
    model: Model | None = None
    for cell in dict.fromkeys(cells):
        what = f"{cell.variant}, {cell.precision}, {cell.events:,} events"
        is_seldom = cell[:2] == ("plain", "float32") and cell.events < largest
        if cell in setting.known or is_seldom or not channel.has(2.0, what):
            continue
        # Compiled code is the same for all sizes: another model would compile it again.
        model = model if cell.variant == "compiled" else None
        gc.collect()
        if setting.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)

        def measure(cell: Cell = cell) -> None:
            nonlocal model
            most = setting.microbatch_particles if cell.variant == "as fed" else sys.maxsize
            batch = batch_of(events, cell.events, setting.device, most)
            if model is None:
                model = cell.model(setting)
                model.step(batch)
            channel.row("step", **cell._asdict(), **_times(model, batch, setting, cell.variant != "compiled"))

        if not channel.attempt(what, measure):
            model = None
    if model is not None and cells[0].variant == "compiled" and channel.has(3.0, "kernels of compiled code"):
        _kernels(cells[0], model, batch_of(events, largest, setting.device), channel)


compiled, compiled_bf16 = (partial(step, variants=(("compiled", precision),)) for precision in ("", "bf16"))
"""The same for compiled code: apart from the others, since a compiler's failure must not cost their figures."""


def _times(model: Model, batch: Batch, setting: Setting, is_counted: bool) -> dict[str, Any]:
    """Times, memory and, if they can be counted, operators of a step."""
    device = torch.device(setting.device)

    def cycle() -> None:
        for _ in range(CYCLE):
            model.step(batch)

    first_s, _ = once(lambda: model.step(batch), device)
    whole_s, host_s = timed(cycle, device, setting.repeats)
    row = {"particles": batch.num_particles, "seconds": whole_s / CYCLE, "host_s": host_s / CYCLE}
    if device.type == "cuda":
        row["allocated_bytes"] = torch.cuda.max_memory_allocated(device)
        row["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    if is_counted:
        counts = counted(cycle)
        row |= {"operators": counts.operators / CYCLE, "bytes": counts.num_bytes / CYCLE, "flops": counts.flops / CYCLE}
    return row | {"first_step_s": first_s}


def kernels(setting: Setting, channel: Channel) -> None:
    """Rows of the kernels of the shipped step; those of the compiled one are its own stages'."""
    cell = Cell("shipped", setting.default_precision, setting.events[0])
    _kernels(cell, cell.model(setting), batch_of(simulated(cell.events), cell.events, setting.device), channel)


def _kernels(cell: Cell, model: Model, batch: Batch, channel: Channel) -> None:
    """Rows: all kernels of a step, the mean over a cycle, then the longest. On a CPU: operators, nested ones, too."""
    is_cuda = batch.microbatches[0].offsets_E1.is_cuda
    kind = DeviceType.CUDA if is_cuda else DeviceType.CPU
    for _ in range(2 + CYCLE):
        model.step(batch)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + is_cuda]) as recorded:
        for _ in range(CYCLE):
            model.step(batch)
        if is_cuda:
            torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in recorded.events():
        if event.device_type == kind and not getattr(event, "is_user_annotation", False):
            for name in ("all", event.name):
                sums[name][0] += 1 / CYCLE
                sums[name][1] += event.time_range.elapsed_us() / 1e6 / CYCLE
    for name, (calls, seconds) in sorted(sums.items(), key=lambda one: -one[1][1])[: 1 + MOST_KERNELS]:
        shown = name if len(name) <= 90 else name[:60] + " … " + name[-27:]
        channel.row("kernels", **cell._asdict(), kernel=shown, calls_a_step=calls, seconds=seconds)


def others(setting: Setting, channel: Channel) -> None:
    """Rows: steps of the likelihood model and of directions, and the generation of events."""
    device, network = torch.device(setting.device), dict(setting.network)
    num_events, plan = setting.events[0], EventsPlan(setting.directions, 1, SEED)
    muons = batch_of(simulated(num_events), num_events, setting.device)
    neutrinos = batch_of(directions(plan), setting.directions, setting.device)

    def row(model: str, precision: str, work: Work, events: int, particles: int) -> None:
        whole_s, host_s = timed(work, device, 4 * setting.repeats, 3.0)
        sizes = {"events": events, "particles": particles, "seconds": whole_s, "host_s": host_s}
        channel.row("models", model=model, precision=precision, **sizes)

    def steps(precision: str) -> None:
        set_matmul_precision(precision)
        context = StepContext(device, SEED, bf16=precision == "bf16")
        likelihood = LikelihoodTask(LikelihoodConfig(network=network), context)
        row("likelihood", precision, lambda: likelihood.step(muons), num_events, muons.num_particles)
        sets = DirectionTask("sets", SetsConfig(geometry=str(geometry)), context)
        row("sets", precision, lambda: sets.step(neutrinos), neutrinos.num_events, neutrinos.num_particles)

    def generation() -> None:
        set_matmul_precision("float32")  # it computes in this one, whatever the training
        task = WganTask(WganConfig(network=network, likelihood_steps=50), StepContext(device, SEED))
        for _ in range(51):  # numbers of muons are then those of events, about
            task.step(muons)
        primary_E4 = muons.microbatches[0].event_columns["primary"][: setting.primaries]
        made = int(task.generate(primary_E4).counts_E.sum())
        row("generation, WGAN", "float32", lambda: task.generate(primary_E4), len(primary_E4), made)

    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        geometry = Path(folder, GEOMETRY_FILE)
        write_geometry(geometry, plan.geometry)
        for precision in (setting.default_precision, "bf16"):
            channel.attempt(f"likelihood and directions, {precision}", partial(steps, precision))
    channel.attempt("generation", generation)
