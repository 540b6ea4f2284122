"""Use of the GPU over time, with an NVML and an allocator of the test's own."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.trainer.speed.gpu_sampler import GpuSampler, start_gpu_sampler
from services.trainer.speed.gpu_status import (
    GPU_MEMORY_SHARE,
    GPU_MEMORY_UTILISATION,
    GPU_UTILISATION,
    MEAN_ALLOCATED,
)


class FakeNvml:
    """Answers with the given percentages, one after the other, and then as it is told."""

    class NVMLError(Exception):
        pass

    def __init__(self, *percents: int, fails: bool = False) -> None:
        self.percents = list(percents)
        self.fails = fails
        self.used_up = threading.Event()
        self.go_on = threading.Event()
        self.asked_for = ""

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked_for = uuid
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        assert handle == "handle"
        if not self.percents:
            self.used_up.set()
            assert self.go_on.wait(30)
            raise self.NVMLError("GPU is lost")
        percent = self.percents.pop(0)
        return SimpleNamespace(gpu=percent, memory=percent / 2)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        assert handle == "handle"
        return SimpleNamespace(used=3 << 30, total=4 << 30)


class FakeAllocator:
    """Says how much is in tensors, one MiB more each time; the sampler stands still after the last number."""

    def __init__(self, num_samples: int) -> None:
        self.left = num_samples
        self.said = 0
        self.used_up = threading.Event()
        self.go_on = threading.Event()

    def allocated_bytes(self) -> int:
        if self.said == self.left:
            self.used_up.set()
            assert self.go_on.wait(30)
        self.said += 1
        return self.said << 20


def test_the_figures_are_means_since_they_were_last_read() -> None:
    nvml, allocator = FakeNvml(100, 50, 0, 90), FakeAllocator(4)
    sampler = GpuSampler(allocator.allocated_bytes, nvml, "handle", period_s=0.001)
    assert allocator.used_up.wait(30)
    assert sampler.read() == {
        GPU_UTILISATION: pytest.approx(0.6),
        GPU_MEMORY_UTILISATION: pytest.approx(0.3),
        GPU_MEMORY_SHARE: 0.75,
        MEAN_ALLOCATED: 2.5,
    }
    assert sampler.read() == {}, "nothing was sampled since"
    nvml.go_on.set()
    allocator.go_on.set()
    sampler.close()


def test_a_gpu_that_is_lost_to_nvml_is_told_once_and_its_memory_is_sampled_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml, allocator = FakeNvml(40), FakeAllocator(3)
    nvml.go_on.set()
    sampler = GpuSampler(allocator.allocated_bytes, nvml, "handle", period_s=0.001)
    assert allocator.used_up.wait(30)
    assert sampler.read() == {
        GPU_UTILISATION: 0.4,
        GPU_MEMORY_UTILISATION: 0.2,
        GPU_MEMORY_SHARE: 0.75,
        MEAN_ALLOCATED: 2.0,
    }
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU's utilisation is not reported any more: NVML: GPU is lost"
    ]
    allocator.go_on.set()
    sampler.close()


def test_a_cpu_has_no_utilisation_and_no_line() -> None:
    assert start_gpu_sampler(torch.device("cpu"), FakeNvml(1)) is None


def test_a_gpu_without_nvml_is_told_once_and_its_memory_is_sampled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = FakeAllocator(1)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocator.allocated_bytes())
    sampler = start_gpu_sampler(torch.device("cuda"), FakeNvml(fails=True))
    assert sampler is not None
    assert allocator.used_up.wait(30)
    assert sampler.read() == {MEAN_ALLOCATED: 1.0}
    allocator.go_on.set()
    sampler.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU's utilisation is not reported: NVML: Driver Not Loaded"
    ]


def test_the_device_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234-ab"))
    nvml = FakeNvml(1, 2, 3)
    nvml.go_on.set()
    sampler = start_gpu_sampler(torch.device("cuda"), nvml)
    assert sampler is not None
    sampler.close()
    assert nvml.asked_for == "GPU-1234-ab"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_real_gpu_tells_its_utilisation() -> None:
    sampler = start_gpu_sampler(torch.device("cuda"))
    assert sampler is not None, "NVML answers"
    ticks = threading.Event()
    found: dict[str, float] = {}
    for _ in range(100):
        ticks.wait(0.1)
        found = sampler.read()
        if found:
            break
    sampler.close()
    assert 0.0 <= found[GPU_UTILISATION] <= 1.0
    assert 0.0 <= found[GPU_MEMORY_UTILISATION] <= 1.0
    assert 0.0 < found[GPU_MEMORY_SHARE] <= 1.0
    assert found[MEAN_ALLOCATED] >= 0.0
