"""The utilisation's mean, with an NVML of the test's own."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.trainer.speed.gpu_sampler import GPU_MEMORY_SHARE, GPU_UTILISATION, GpuSampler, start_gpu_sampler


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
        return SimpleNamespace(gpu=self.percents.pop(0))

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        assert handle == "handle"
        return SimpleNamespace(used=3 << 30, total=4 << 30)


def test_it_is_the_mean_since_it_was_last_read() -> None:
    nvml = FakeNvml(100, 50, 0, 90)
    sampler = GpuSampler(nvml, "handle", period_s=0.001)
    assert nvml.used_up.wait(30)
    assert sampler.read() == {GPU_UTILISATION: pytest.approx(0.6), GPU_MEMORY_SHARE: 0.75}
    assert sampler.read() == {}, "nothing was sampled since"
    nvml.go_on.set()
    sampler.close()


def test_a_gpu_that_is_lost_ends_the_sampling_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(40)
    nvml.go_on.set()
    sampler = GpuSampler(nvml, "handle", period_s=0.001)
    sampler._thread.join(30)
    assert not sampler._thread.is_alive()
    assert sampler.read() == {GPU_UTILISATION: 0.4, GPU_MEMORY_SHARE: 0.75}
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU's utilisation is not reported any more: NVML: GPU is lost"
    ]
    sampler.close()


def test_a_cpu_has_no_utilisation_and_no_line() -> None:
    assert start_gpu_sampler(torch.device("cpu"), FakeNvml(1)) is None


def test_a_gpu_without_nvml_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert start_gpu_sampler(torch.device("cuda"), FakeNvml(fails=True)) is None
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
    assert 0.0 < found[GPU_MEMORY_SHARE] <= 1.0
