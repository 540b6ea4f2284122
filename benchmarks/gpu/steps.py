"""Steps: simulated batches, times on a device, the table of the WGAN's step, its kernels, other models."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.counting import counted
from benchmarks.gpu.processes import Channel, Setting
from benchmarks.reference_step import ReferenceStep
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.geometry import GEOMETRY_FILE, write_geometry
from workloads.direction.models.config import SetsConfig
from workloads.direction.models.task import DirectionTask
from workloads.direction.simulator import EventsPlan, file_rows
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


def simulated(num_events: int, seed: int = 1) -> Microbatch:
    """Return muon events of the simulator's `bench` preset, in one microbatch, on the host."""
    config, rng = preset("bench"), np.random.default_rng(seed)
    bundles = simulate(sample_primaries(num_events, config, rng), config, rng)
    return _microbatch(bundles.counts_E, {"primary": bundles.primary_E4}, {"muons": bundles.muons_P3})


def directions(plan: EventsPlan) -> Microbatch:
    """Return neutrino events in one microbatch, on the host. Their classical fits are random numbers: a step takes as
    long with them, and they need no scipy."""
    (rows,) = file_rows(plan, 0)
    events, fits = rows.events, np.random.default_rng(SEED).normal(size=(len(rows), len(CLASSICAL_FITS)))
    opens_P = np.concatenate([[True], np.diff(events.sensor_P) != 0])
    opens_P[np.cumsum(events.counts_E)[:-1]] = True
    of_events = {"source_direction": -events.truth.travel_E3, "classical_fits": fits}
    floats: dict[str, Any] = {name: column.astype(np.float32) for name, column in of_events.items()}
    pulses_P2 = np.stack([events.time_ns_P, events.charge_pe_P], 1)
    flags: dict[str, Any] = {"sensor": events.sensor_P, "auxiliary": events.auxiliary_P, "opens_sensor": opens_P}
    return _microbatch(events.counts_E, floats | {"enriched": rows.added_E}, flags | {"pulses": pulses_P2})


def _microbatch(counts_E: Any, *columns: dict[str, Any]) -> Microbatch:
    """Microbatch with these columns of events and of particles."""
    offsets_E1 = np.concatenate([[0], np.cumsum(counts_E)])
    events, particles = (
        {name: torch.from_numpy(one.reshape(len(one), -1)) for name, one in of.items()} for of in columns
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


class Cell(NamedTuple):
    """A row of the step's table: ``shipped``, ``shipped, as fed`` (in microbatches, as the trainer gets it),
    ``compiled`` or ``plain`` (of benchmarks/reference_step.py); ``float32``, ``tf32`` (on CUDA) or ``bf16``; events."""

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


FED = "shipped, as fed"
EAGER = ("shipped", ""), ("plain", "float32"), ("shipped", "bf16"), ("plain", ""), (FED, ""), (FED, "bf16")
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
            most = setting.microbatch_particles if cell.variant == FED else sys.maxsize
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
    channel.send("say", "kernels by torch's profiler")
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
    channel.send("say", "simulating events of both kinds")
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
        primary_E4 = muons.microbatches[0].event_columns["primary"]
        primary_E4 = primary_E4[torch.arange(setting.primaries, device=device) % len(primary_E4)]
        made = int(task.generate(primary_E4).counts_E.sum())
        row("generation, WGAN", "float32", lambda: task.generate(primary_E4), len(primary_E4), made)

    with tempfile.TemporaryDirectory(prefix="icestream-gpu-") as folder:
        geometry = Path(folder, GEOMETRY_FILE)
        write_geometry(geometry, plan.geometry)
        for precision in (setting.default_precision, "bf16"):
            channel.attempt(f"likelihood and directions, {precision}", partial(steps, precision))
    channel.attempt("generation", generation)
