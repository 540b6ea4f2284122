"""Measurements beside the training: memory and use of the GPU, pace, operations, a profile, the replay ceiling."""

from __future__ import annotations

import importlib
import logging
import os
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from common.atomic_file import replace_file
from common.status import GpuStatus, TrainerStatus
from services.config.settings import TrainerConfig
from services.trainer.state import TrainState
from workloads.base.batch import Batch
from workloads.base.flops import counted_flops
from workloads.base.training import Task

logger = logging.getLogger(__name__)

GPU_UTILISATION = "gpu/utilisation"
GPU_MEMORY_UTILISATION = "gpu/memory_utilisation"
GPU_MEMORY_SHARE = "gpu/memory_share"
MEAN_ALLOCATED = "memory/mean_allocated_mib"
MAX_ALLOCATED = "memory/max_allocated_mib"
RESERVED = "memory/reserved_mib"


def gpu_status(scalars: Mapping[str, float]) -> GpuStatus | None:
    """Use of the GPU; None if there is none."""
    if RESERVED not in scalars:
        return None

    def num_bytes(name: str) -> int | None:
        return int(scalars[name] * 2**20) if name in scalars else None

    return GpuStatus(
        utilisation=scalars.get(GPU_UTILISATION),
        memory_utilisation=scalars.get(GPU_MEMORY_UTILISATION),
        memory_share=scalars.get(GPU_MEMORY_SHARE),
        allocated_mean_bytes=num_bytes(MEAN_ALLOCATED),
        allocated_max_bytes=num_bytes(MAX_ALLOCATED),
        reserved_bytes=num_bytes(RESERVED),
    )


PERIOD_S = 0.2
"""Sampling period; NVML's own number is a mean over 1/6 to 1 s."""
_MIB = 1 << 20


@dataclass(eq=False)
class GpuSampler:
    """Means over the samples since they were last read.

    Of NVML, 0 to 1: the part of the time in which a kernel ran, that in which the device's memory was read or written,
    and the used part of the memory at the newest sample. Of torch: MiB in tensors.
    """

    allocated_bytes: Callable[[], int]
    nvml: Any = None
    """The module pynvml, initialised, or None."""
    handle: Any = None
    """The device, as pynvml names it."""
    period_s: float = PERIOD_S

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, int]] = {}
        self._memory_share = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)
        self._thread.start()

    def read(self) -> dict[str, float]:
        """Figures by name; none of what was not sampled since the last call."""
        with self._lock:
            found = {name: total / num for name, (total, num) in self._sums.items()}
            self._sums = {}
        return found | ({GPU_MEMORY_SHARE: self._memory_share} if GPU_UTILISATION in found else {})

    def close(self) -> None:
        """Stop sampling."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(self.period_s):
            found = {MEAN_ALLOCATED: self.allocated_bytes() / _MIB} | self._of_nvml()
            with self._lock:
                for name, value in found.items():
                    total, num = self._sums.get(name, (0.0, 0))
                    self._sums[name] = total + value, num + 1

    def _of_nvml(self) -> dict[str, float]:
        if self.nvml is None:
            return {}
        try:
            percent = self.nvml.nvmlDeviceGetUtilizationRates(self.handle)
            memory = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        except self.nvml.NVMLError as error:
            logger.warning("the GPU's utilisation is not reported any more: NVML: %s", error)
            self.nvml = None
            return {}
        self._memory_share = memory.used / memory.total
        return {GPU_UTILISATION: percent.gpu / 100, GPU_MEMORY_UTILISATION: percent.memory / 100}


def start_gpu_sampler(device: torch.device, nvml: Any = None) -> GpuSampler | None:
    """Sampler of the training device; None on a CPU. Without NVML, of the memory alone, with a line in the log."""
    if device.type != "cuda":
        return None
    allocated_bytes = partial(torch.cuda.memory_allocated, device)
    if nvml is None:
        nvml = importlib.import_module("pynvml")  # nvmlInit loads NVIDIA's library itself
    try:
        nvml.nvmlInit()
        # The UUID: device numbers change under CUDA_VISIBLE_DEVICES.
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetUtilizationRates(handle)
    except nvml.NVMLError as error:
        logger.warning("the GPU's utilisation is not reported: NVML: %s", error)
        return GpuSampler(allocated_bytes)
    return GpuSampler(allocated_bytes, nvml, handle)


def reset_peak(device: torch.device) -> None:
    """Begin a new maximum for peak_bytes(), where that is possible: on CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Maximum memory: on CUDA in tensors since reset_peak(), else resident of this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_scalars(device: torch.device) -> dict[str, float]:
    """Memory in MiB: resident memory of the process, and on CUDA that of the allocator.

    allocated: in tensors. reserved: taken from the device, cached memory included; max_…: the most so far.
    inactive_split: cached in pieces that only fit smaller tensors. free: of the whole device, other processes included.
    """
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {"memory/rss_mib": resident_pages * os.sysconf("SC_PAGE_SIZE") / _MIB}
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free_bytes, _ = torch.cuda.mem_get_info(device)
        found |= {
            "memory/allocated_mib": stats.get("allocated_bytes.all.current", 0) / _MIB,
            MAX_ALLOCATED: stats.get("allocated_bytes.all.peak", 0) / _MIB,
            RESERVED: stats.get("reserved_bytes.all.current", 0) / _MIB,
            "memory/max_reserved_mib": stats.get("reserved_bytes.all.peak", 0) / _MIB,
            "memory/inactive_split_mib": stats.get("inactive_split_bytes.all.current", 0) / _MIB,
            "memory/free_mib": free_bytes / _MIB,
        }
    return found


START_UP_STEPS = 5
"""Warm-up steps that don't count: they wait for data, fit the standardisation, and choose kernels."""


class Pace:
    """Training rate, which includes everything between two steps: the wait for data, logging, checkpoints.

    On CUDA a step has ended for the host when it is queued; the host is ahead by ``log_every`` steps at most.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._events = 0
        self._began_s = self._newest_s = 0.0

    def stepped(self, now_s: float, num_events: int) -> None:
        """Record the end of a step with ``num_events`` events."""
        self._steps += 1
        self._newest_s = now_s
        if self._steps <= START_UP_STEPS:
            self._began_s = now_s
        else:
            self._events += num_events

    @property
    def events_per_s(self) -> float:
        """Rate; 0 during warm-up."""
        seconds = self._newest_s - self._began_s
        return self._events / seconds if seconds > 0 else 0.0


class FlopMeter:
    """Meter of this process: the first step is counted, later ones by their number of particles.

    Counting takes the first step about half as long again. It includes whatever the model does with a batch: several
    updates, generated events, penalties. Models whose work grows faster than their particles are off by that. With
    the model's setting `compile` nothing is counted: a counted step is computed as it is written, so that each restart
    would change bits.
    """

    def __init__(self) -> None:
        self.total = 0.0
        """Operations of all steps so far."""
        self._per_particle: float | None = None

    @contextmanager
    def counted(self, task: Task, batch: Batch) -> Iterator[None]:
        """Return the context of one step of the task."""
        is_compiled = getattr(getattr(task, "config", None), "compile", False)
        if self._per_particle is None and batch.num_particles and not is_compiled:
            with counted_flops() as count:
                yield
            self._per_particle = count.flops / batch.num_particles
        else:
            yield
        self.total += (self._per_particle or 0.0) * batch.num_particles


PROFILE_FOLDER = "profile"
WARM_UP_STEPS = 10
"""Steps before the first profiled one: they fit the standardisation, make the optimisers' state, choose kernels."""
ROWS = 25


class StepProfile:
    """Profile of one trainer process. Call stepped() after each step, close() at the end."""

    def __init__(self, run_dir: Path, num_steps: int, device: torch.device) -> None:
        self._folder = run_dir / PROFILE_FOLDER
        self._num_steps = num_steps
        self._device = device
        self._seen = 0
        self._first = 0
        """Number of the first profiled step, over the whole run."""
        self._profile: profile | None = None
        self.done = False
        """True once the profile has been written."""

    def stepped(self, step: int) -> None:
        """Record the end of step ``step`` of the run."""
        if self.done:
            return
        self._seen += 1
        if self._seen == WARM_UP_STEPS:
            self._begin(step + 1)
        elif self._seen == WARM_UP_STEPS + self._num_steps:
            self._end()

    def close(self) -> None:
        """Write the recorded steps: no more follow."""
        if self._profile is not None:
            self._end()
        if self._seen <= WARM_UP_STEPS:
            logger.warning("nothing was profiled: of %d steps the first %d only warm up", self._seen, WARM_UP_STEPS)

    def _begin(self, first: int) -> None:
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(self._device)  # kernels of earlier steps must not be recorded
        self._first = first
        all_threads = _ExperimentalConfig(profile_all_threads=True)  # a step on the CPU uses trainer.threads threads
        self._profile = profile(activities=activities, experimental_config=all_threads)
        self._profile.start()

    def _end(self) -> None:
        assert self._profile is not None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._profile.stop()
        recorded, self._profile, self.done = self._profile, None, True
        num_steps = self._seen - WARM_UP_STEPS
        if num_steps == 0:
            return
        last = self._first + num_steps - 1  # counted, since a rollback would reset the run's own number
        self._folder.mkdir(exist_ok=True)
        name = f"steps-{self._first:08d}-{last:08d}"
        trace = self._folder / f"{name}.trace.json.gz"
        recorded.export_chrome_trace(str(trace))
        key = f"self_{self._device.type}_time_total"
        table = recorded.key_averages().table(sort_by=key, row_limit=ROWS, max_name_column_width=60)
        text = f"Profile of {num_steps} steps ({self._first} to {last}) on {self._device}\n{table}"
        (self._folder / f"{name}.txt").write_text(text)
        logger.info("%strace for https://ui.perfetto.dev: %s", text, trace)


REPLAY_S = 5.0
"""Duration of the replay at the end of a run: long enough for a steady median of its rounds."""
CEILING_FILE = "ceiling.json"
MIN_ROUNDS = 3


class Ceiling(BaseModel):
    """Content of `ceiling.json`. A round replays each batch once; the host waits for the device only at its end."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    device: str
    batches: int
    rounds: int
    events_per_batch: float
    particles_per_batch: float
    events_per_s: float
    """Rate of the median round, as the other rates."""
    particles_per_s: float
    steps_per_s: float
    s_per_step: float
    s_per_step_min: float
    """Rate of the fastest round."""
    s_per_step_max: float
    """Rate of the slowest round."""


class Sample:
    """Random sample of a session's batches on the device, each as likely as any other.

    The newest batches alone are no good sample: batches differ in their particles, and the plan's last one is small.
    """

    def __init__(self, most: int) -> None:
        """``most``: batches that are held."""
        self.batches: list[Batch] = []
        self._most = most
        self._seen = 0
        self._random = random.Random(0)

    def add(self, batch: Batch) -> None:
        """Add a batch that was trained."""
        self._seen += 1
        if len(self.batches) < self._most:
            self.batches.append(batch)
        elif (place := self._random.randrange(self._seen)) < self._most:
            self.batches[place] = batch


def measure(
    task: Task,
    batches: Sequence[Batch],
    device: torch.device,
    *,
    seconds: float,
    steps: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Ceiling | None:
    """Replay ``batches`` for at least ``seconds``, ``steps`` and MIN_ROUNDS rounds, after one that doesn't count.

    The replay trains the task: don't use it afterwards. None if stopped before a round was measured.
    """
    if not batches:
        raise ValueError("there is nothing to replay")
    round_s: list[float] = []
    warm = False
    while not warm or len(round_s) < MIN_ROUNDS or sum(round_s) < seconds or len(round_s) * len(batches) < steps:
        _wait_for(device)
        started_s = clock()
        for batch in batches:
            if stopped():
                return _ceiling(round_s, batches, device) if round_s else None
            task.step(batch)
        _wait_for(device)
        if warm:
            round_s.append(clock() - started_s)
        warm = True
    return _ceiling(round_s, batches, device)


def write_ceiling(run_dir: Path, ceiling: Ceiling) -> None:
    """Replace the run directory's ceiling, atomically."""
    replace_file(run_dir / CEILING_FILE, ceiling.model_dump_json(indent=2) + "\n", durable=False)


def _ceiling(round_s: Sequence[float], batches: Sequence[Batch], device: torch.device) -> Ceiling:
    median_s = statistics.median(round_s)
    num_events = sum(batch.num_events for batch in batches)
    num_particles = sum(batch.num_particles for batch in batches)
    return Ceiling(
        device=str(device),
        batches=len(batches),
        rounds=len(round_s),
        events_per_batch=num_events / len(batches),
        particles_per_batch=num_particles / len(batches),
        events_per_s=num_events / median_s,
        particles_per_s=num_particles / median_s,
        steps_per_s=len(batches) / median_s,
        s_per_step=median_s / len(batches),
        s_per_step_min=min(round_s) / len(batches),
        s_per_step_max=max(round_s) / len(batches),
    )


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Gauges:
    """Measurements of one trainer process. Call stepped() after each step, close() at the end of training.

    With several ranks the first is profiled, and there is no replay: each rank would set its number of rounds by its
    own clock, and wait for the others' gradients for ever.
    """

    def __init__(
        self, run_dir: Path, config: TrainerConfig, device: torch.device, *, rank: int = 0, ranks: int = 1
    ) -> None:
        self._run_dir = run_dir
        self._pace = Pace()
        self._profile = (
            StepProfile(run_dir, config.profile_steps, device) if config.profile_steps and not rank else None
        )
        self._sample = Sample(config.replay_batches) if config.replay_batches and ranks == 1 else None
        if config.replay_batches and ranks > 1:
            logger.warning(
                "trainer.replay_batches: the replay ceiling is measured with one trainer only, not with %d", ranks
            )

    def stepped(self, step: int, batch: Batch) -> None:
        """Record the end of step ``step`` of the run."""
        if self._sample is not None:
            self._sample.add(batch)
        if self._profile is not None and not self._profile.done:
            self._profile.stepped(step)
            self._pace = Pace()  # profiled steps are slower and don't count
        self._pace.stepped(time.monotonic(), batch.total_events)

    def close(self, state: TrainState, status: TrainerStatus, *, stopped: Callable[[], bool]) -> TrainerStatus:
        """Final status with the measurements. The last checkpoint must be written: the replay changes the weights."""
        if self._profile is not None:
            self._profile.close()
        ceiling = None
        if self._sample is not None and self._sample.batches:
            ceiling = measure(state.task, self._sample.batches, state.device, seconds=REPLAY_S, stopped=stopped)
        if ceiling is not None:
            write_ceiling(self._run_dir, ceiling)
            logger.info(
                "replay ceiling: %.1f events/s (%d batches, %d rounds, %.1f ms a step)",
                ceiling.events_per_s,
                ceiling.batches,
                ceiling.rounds,
                1e3 * ceiling.s_per_step,
            )
        replay_events_per_s = ceiling.events_per_s if ceiling is not None else 0.0
        update = {"session_events_per_s": self._pace.events_per_s, "replay_events_per_s": replay_events_per_s}
        return status.model_copy(update=update)
