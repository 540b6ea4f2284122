"""Memory: what is told of it, and that ragged steps don't make it grow."""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest
import torch

from services.trainer.speed.memory import memory_scalars
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.models.wgan.config import NetworkConfig, WganConfig
from workloads.muons.models.wgan.task import WganTask

MIB = 1 << 20
MAX_PARTICLES = 512


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_the_process_and_what_the_device_has_are_told_in_mib(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    block = torch.zeros(4 * MIB, device=name)
    found = memory_scalars(torch.device(name))
    assert 20 < found["memory/rss_mib"] < 1e5
    if name == "cpu":
        assert found.keys() == {"memory/rss_mib"}
    else:
        names = ("rss", "allocated", "max_allocated", "reserved", "max_reserved", "inactive_split", "free")
        assert found.keys() == {f"memory/{one}_mib" for one in names}
        assert found["memory/allocated_mib"] >= block.nbytes / MIB
        assert found["memory/max_allocated_mib"] >= found["memory/allocated_mib"]
        assert found["memory/max_reserved_mib"] >= found["memory/reserved_mib"] >= found["memory/allocated_mib"]


def ragged_batch(rng: torch.Generator, device: torch.device, *, full: bool) -> Batch:
    """1 to 3 microbatches of very different sizes, one of them as large as may be if ``full``."""
    microbatches = []
    for index in range(int(torch.randint(1, 4, (), generator=rng))):
        num_events = int(torch.randint(1, 40, (), generator=rng))
        scale = 10 ** (2 * float(torch.rand((), generator=rng)) - 1)
        counts = (scale * -torch.rand(num_events, generator=rng).log()).long()
        if full and index == 0:
            counts[0] = MAX_PARTICLES
        ends = counts.cumsum(0).clamp_max(MAX_PARTICLES)  # as the decoder cuts microbatches
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        num_particles = int(offsets[-1])
        energy = 10 ** (5 + 2 * torch.rand(num_events, generator=rng))
        mass = torch.ones(num_events)
        primary = torch.stack([energy, torch.rand(num_events, generator=rng), mass, 1500 * mass], 1)
        muons = torch.rand(num_particles, 3, generator=rng) * 100 + 1
        microbatches.append(
            Microbatch(
                epoch=0,
                unit=0,
                index=index,
                offsets_E1=offsets.to(device),
                host_offsets_E1=offsets.numpy(),
                event_columns={"primary": primary.to(device)},
                particle_columns={"muons": muons.to(device)},
                num_events=num_events,
                num_particles=num_particles,
            )
        )
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
    rng = torch.Generator().manual_seed(1)
    small = NetworkConfig(hidden=8, count_hidden=8, z_global=2, z_local=2)
    task = WganTask(WganConfig(critic_steps=1, network=small), StepContext(device, 0))
    warm_bytes = 0
    for step in range(1, num_steps + 1):
        task.step(ragged_batch(rng, device, full=step % 50 == 0))
        if step == warm_up_steps:
            warm_bytes = held_bytes(device)
    grown_bytes = held_bytes(device) - warm_bytes
    assert grown_bytes < most_kib << 10, f"{grown_bytes / 1024:.0f} KiB more than after {warm_up_steps} steps"
