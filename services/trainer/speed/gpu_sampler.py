"""Use of the GPU, averaged over time: a thread samples NVML and torch's allocator."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from services.trainer.speed.gpu_status import (
    GPU_MEMORY_SHARE,
    GPU_MEMORY_UTILISATION,
    GPU_UTILISATION,
    MEAN_ALLOCATED,
)

logger = logging.getLogger(__name__)

PERIOD_S = 0.2
"""Sampling period; NVML's own number is a mean over 1/6 to 1 s."""
_MIB = 1 << 20


class GpuSampler:
    """Means over the samples since they were last read.

    Of NVML, 0 to 1: the part of the time in which a kernel ran, that in which the device's memory was read or written,
    and the used part of the memory at the newest sample. Of torch: MiB in tensors.
    """

    def __init__(
        self,
        allocated_bytes: Callable[[], int],
        nvml: Any = None,
        handle: Any = None,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        """``nvml``: the module pynvml, initialised, or None. ``handle``: the device, as it names it."""
        self._allocated_bytes = allocated_bytes
        self._nvml = nvml
        self._handle = handle
        self._period_s = period_s
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
        while not self._end.wait(self._period_s):
            found = {MEAN_ALLOCATED: self._allocated_bytes() / _MIB} | self._of_nvml()
            with self._lock:
                for name, value in found.items():
                    total, num = self._sums.get(name, (0.0, 0))
                    self._sums[name] = total + value, num + 1

    def _of_nvml(self) -> dict[str, float]:
        if self._nvml is None:
            return {}
        try:
            percent = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError as error:
            logger.warning("the GPU's utilisation is not reported any more: NVML: %s", error)
            self._nvml = None
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
