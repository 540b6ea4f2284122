"""Use of the GPU as the status file has it."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from toy_events import toy_microbatch

from common.status import GpuStatus
from services.trainer import speed
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.models.wgan import WganTask


def test_memory_is_in_bytes_and_what_nvml_does_not_say_is_unknown() -> None:
    assert speed.gpu_status({"memory/rss_mib": 100.0}) is None, "on a CPU"
    memory = {"memory/mean_allocated_mib": 1.5, "memory/max_allocated_mib": 2.0, "memory/reserved_mib": 4.0}
    expected = GpuStatus(allocated_mean_bytes=3 << 19, allocated_max_bytes=2 << 20, reserved_bytes=4 << 20)
    assert speed.gpu_status(memory) == expected
    nvml = {"gpu/utilisation": 0.5, "gpu/memory_utilisation": 0.25, "gpu/memory_share": 0.75}
    shares = {"utilisation": 0.5, "memory_utilisation": 0.25, "memory_share": 0.75}
    assert speed.gpu_status(memory | nvml) == expected.model_copy(update=shares)


class FakeNvml:
    """Answers with the given percentages, one after the other, and then with an error."""

    class NVMLError(Exception):
        pass

    def __init__(self, *percents: int, fails: bool = False) -> None:
        self.percents = list(percents)
        self.fails = fails
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
    allocator = FakeAllocator(4)
    sampler = speed.GpuSampler(allocator.allocated_bytes, FakeNvml(100, 50, 0, 90), "handle", period_s=0.001)
    assert allocator.used_up.wait(30)
    assert sampler.read() == {
        speed.GPU_UTILISATION: pytest.approx(0.6),
        speed.GPU_MEMORY_UTILISATION: pytest.approx(0.3),
        speed.GPU_MEMORY_SHARE: 0.75,
        speed.MEAN_ALLOCATED: 2.5,
    }
    assert sampler.read() == {}, "nothing was sampled since"
    allocator.go_on.set()
    sampler.close()


def test_a_gpu_that_is_lost_to_nvml_is_told_once_and_its_memory_is_sampled_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    allocator = FakeAllocator(3)
    sampler = speed.GpuSampler(allocator.allocated_bytes, FakeNvml(40), "handle", period_s=0.001)
    assert allocator.used_up.wait(30)
    assert sampler.read() == {
        speed.GPU_UTILISATION: 0.4,
        speed.GPU_MEMORY_UTILISATION: 0.2,
        speed.GPU_MEMORY_SHARE: 0.75,
        speed.MEAN_ALLOCATED: 2.0,
    }
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU's utilisation is not reported any more: NVML: GPU is lost"
    ]
    allocator.go_on.set()
    sampler.close()


def test_a_gpu_without_nvml_is_told_once_and_its_memory_is_sampled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = FakeAllocator(1)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocator.allocated_bytes())
    sampler = speed.start_gpu_sampler(torch.device("cuda"), FakeNvml(fails=True))
    assert sampler is not None
    assert allocator.used_up.wait(30)
    assert sampler.read() == {speed.MEAN_ALLOCATED: 1.0}
    allocator.go_on.set()
    sampler.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU's utilisation is not reported: NVML: Driver Not Loaded"
    ]


def test_the_device_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234-ab"))
    nvml = FakeNvml(1, 2, 3)
    assert speed.start_gpu_sampler(torch.device("cpu"), nvml) is None
    sampler = speed.start_gpu_sampler(torch.device("cuda"), nvml)
    assert sampler is not None
    sampler.close()
    assert nvml.asked_for == "GPU-1234-ab"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_real_gpu_tells_its_utilisation() -> None:
    sampler = speed.start_gpu_sampler(torch.device("cuda"))
    assert sampler is not None, "NVML answers"
    ticks = threading.Event()
    found: dict[str, float] = {}
    for _ in range(100):
        ticks.wait(0.1)
        found = sampler.read()
        if found:
            break
    sampler.close()
    assert 0.0 <= found[speed.GPU_UTILISATION] <= 1.0
    assert 0.0 <= found[speed.GPU_MEMORY_UTILISATION] <= 1.0
    assert 0.0 < found[speed.GPU_MEMORY_SHARE] <= 1.0
    assert found[speed.MEAN_ALLOCATED] >= 0.0


MIB = 1 << 20
MAX_PARTICLES = 512


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_the_process_and_what_the_device_has_are_told_in_mib(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    block = torch.zeros(4 * MIB, device=name)
    found = speed.memory_scalars(torch.device(name))
    assert 20 < found["memory/rss_mib"] < 1e5
    if name == "cpu":
        assert found.keys() == {"memory/rss_mib"}
    else:
        names = ("rss", "allocated", "max_allocated", "reserved", "max_reserved", "inactive_split", "free")
        assert found.keys() == {f"memory/{one}_mib" for one in names}
        assert found["memory/allocated_mib"] >= block.nbytes / MIB
        assert found["memory/max_allocated_mib"] >= found["memory/allocated_mib"]
        assert found["memory/max_reserved_mib"] >= found["memory/reserved_mib"] >= found["memory/allocated_mib"]


def ragged_batch(rng: np.random.Generator, device: torch.device, *, full: bool) -> Batch:
    """1 to 3 microbatches of very different sizes, one of them with as many particles as may be if ``full``."""
    microbatches = []
    for index in range(rng.integers(1, 4)):
        counts = (10 ** rng.uniform(-1, 1) * rng.exponential(size=rng.integers(1, 40))).astype(int)
        counts[0] = MAX_PARTICLES if full and index == 0 else counts[0]
        microbatches.append(toy_microbatch(len(counts), int(rng.integers(1000)), counts.tolist()).to(device))
    return Batch(tuple(microbatches))


class _HeapCounts(ctypes.Structure):
    """mallinfo2 of glibc: the fields from `arena` to `keepcost`, in bytes or counts."""

    _fields_ = tuple((f"field_{index}", ctypes.c_size_t) for index in range(10))


_MAPPED_BYTES, _USED_BYTES = "field_4", "field_7"


def held_bytes(device: torch.device) -> int:
    """Bytes that are in use. On CUDA the most that was ever reserved.

    On the CPU not the resident memory: in a process with other tests behind it, that grows by what these left to be
    reused. Instead the allocations of glibc and of Python that are alive.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    gc.collect()
    heap_counts = ctypes.CDLL(None).mallinfo2
    heap_counts.restype = _HeapCounts
    counts = heap_counts()
    return int(getattr(counts, _USED_BYTES) + getattr(counts, _MAPPED_BYTES)) + 64 * sys.getallocatedblocks()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "warm_up_steps", "num_steps", "most_kib"),
    [("cpu", 200, 500, 100), pytest.param("cuda", 1_000, 5_000, 8 << 10, marks=pytest.mark.cuda)],
)
def test_hundreds_of_ragged_steps_with_outliers_hold_no_more_memory_than_the_first_ones(
    name: str, warm_up_steps: int, num_steps: int, most_kib: int
) -> None:
    """A leak of 400 bytes a step fails. CUDA reserves 2 MiB at a time: it takes more steps to be sure.

    Buffers of libraries that are kept come up to step 150.
    """
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    if name == "cpu" and not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("the allocations that are alive are counted by glibc 2.33 and later")
    device = torch.device(name)
    rng = np.random.default_rng(1)
    small = MuonNetworkConfig(hidden=8, energy_cut_gev=0.0)
    task = WganTask(WganConfig(likelihood_steps=1, critic_steps=1, network=small), StepContext(device, 0))
    warm_bytes = 0
    for step in range(1, num_steps + 1):
        task.step(ragged_batch(rng, device, full=step % 50 == 0))
        if step == warm_up_steps:
            warm_bytes = held_bytes(device)
    grown_bytes = held_bytes(device) - warm_bytes
    assert grown_bytes < most_kib << 10, f"{grown_bytes / 1024:.0f} KiB more than after {warm_up_steps} steps"
