"""Measurements beside the training: memory and use of the GPU, pace, a profile."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from common.status import GpuStatus, TrainerStatus
from services.config.settings import TrainerConfig
from workloads.base.batch import Batch

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


class Gauges:
    """Measurements of one trainer process. Call stepped() after each step, close() at the end of training.

    With several ranks the first is profiled.
    """

    def __init__(self, run_dir: Path, config: TrainerConfig, device: torch.device, *, rank: int = 0) -> None:
        self._pace = Pace()
        self._profile = (
            StepProfile(run_dir, config.profile_steps, device) if config.profile_steps and not rank else None
        )

    def stepped(self, step: int, batch: Batch) -> None:
        """Record the end of step ``step`` of the run."""
        if self._profile is not None and not self._profile.done:
            self._profile.stepped(step)
            self._pace = Pace()  # profiled steps are slower and don't count
        self._pace.stepped(time.monotonic(), batch.total_events)

    def close(self, status: TrainerStatus) -> TrainerStatus:
        """Return the final status with the measurements."""
        if self._profile is not None:
            self._profile.close()
        return status.model_copy(update={"session_events_per_s": self._pace.events_per_s})
