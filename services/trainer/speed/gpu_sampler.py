"""Utilisation of the GPU, averaged over time, and its memory: a thread samples NVML."""

from __future__ import annotations

import importlib
import logging
import threading
from typing import Any

import torch

logger = logging.getLogger(__name__)

GPU_UTILISATION = "gpu/utilisation"
GPU_MEMORY_SHARE = "gpu/memory_share"
PERIOD_S = 0.2
"""Sampling period; NVML's own number is a mean over 1/6 to 1 s."""


class GpuSampler:
    """Mean utilisation (0 to 1) since it was last read: the part of the time in which a kernel ran.

    With it the used part of the device's memory at the newest sample.
    """

    def __init__(self, nvml: Any, handle: Any, *, period_s: float = PERIOD_S) -> None:
        """``nvml``: the module pynvml, initialised. ``handle``: the device, as it names it."""
        self._nvml = nvml
        self._handle = handle
        self._period_s = period_s
        self._lock = threading.Lock()
        self._sum = 0.0
        self._num = 0
        self._memory_share = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)
        self._thread.start()

    def read(self) -> dict[str, float]:
        """Utilisation and memory by name; empty if there was no sample since the last call."""
        with self._lock:
            total, num = self._sum, self._num
            self._sum, self._num = 0.0, 0
            return {GPU_UTILISATION: total / num, GPU_MEMORY_SHARE: self._memory_share} if num else {}

    def close(self) -> None:
        """Stop sampling."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(self._period_s):
            try:
                percent = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            except self._nvml.NVMLError as error:
                logger.warning("the GPU's utilisation is not reported any more: NVML: %s", error)
                return
            with self._lock:
                self._sum += percent / 100
                self._num += 1
                self._memory_share = memory.used / memory.total


def start_gpu_sampler(device: torch.device, nvml: Any = None) -> GpuSampler | None:
    """Sampler of the training device; None, with a line in the log, where NVML can't measure it."""
    if device.type != "cuda":
        return None
    if nvml is None:
        nvml = importlib.import_module("pynvml")  # nvmlInit loads NVIDIA's library itself
    try:
        nvml.nvmlInit()
        # The UUID: device numbers change under CUDA_VISIBLE_DEVICES.
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetUtilizationRates(handle)
    except nvml.NVMLError as error:
        logger.warning("the GPU's utilisation is not reported: NVML: %s", error)
        return None
    return GpuSampler(nvml, handle)
