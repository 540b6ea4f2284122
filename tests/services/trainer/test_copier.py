"""Microbatches out of slots: the same numbers on every device, and slots released when the copy is complete."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.arena import Arena
from common.messages import Layout
from common.ragged import unit_arrays
from common.unit_arrays import UnitArrays
from services.trainer.stream.copier import _warn_of_pageable_memory, make_copier
from workloads.muons.columns import MUONS

COUNTS = np.array([2, 0, 3, 1, 4])
BOUNDS = np.array([0, 3, 5])


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(1, 1 << 16) as arena:
        yield arena


def fill(arena: Arena) -> UnitArrays:
    arrays = unit_arrays(arena.slot(0), MUONS, Layout(len(COUNTS), int(COUNTS.sum()), len(BOUNDS) - 1))
    arrays.offsets[:] = np.concatenate([[0], np.cumsum(COUNTS)])
    arrays.microbatch_bounds[:] = BOUNDS
    for columns in (arrays.particle_columns, arrays.event_columns):
        for column in columns.values():
            column[:] = np.arange(column.size).reshape(column.shape)
    return arrays


def check(arena: Arena, device: torch.device) -> None:
    copier = make_copier(arena, device)
    arrays = fill(arena)
    copies = [copier.copy(arrays, 3, 17, index) for index in range(2)]
    copier.hand_over(copier.mark())  # type: ignore[arg-type]
    released: list[int] = []
    copier.finish_unit(lambda: released.append(17))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    copier.poll()
    assert released == [17]
    arena.slot(0)[:] = 255  # the slot belongs to a decoder again: a copy must not change with it
    first, second = copies
    assert first.offsets_E1.tolist() == [0, 2, 2, 5]
    assert second.offsets_E1.tolist() == [0, 1, 5]
    assert first.particle_columns["muons"].cpu().ravel().tolist() == list(range(15))
    assert second.particle_columns["muons"].cpu().ravel().tolist() == list(range(15, 30))
    assert second.event_columns["primary"].cpu().ravel().tolist() == list(range(12, 20))
    assert (second.epoch, second.unit, second.index) == (3, 17, 1)
    assert (first.num_events, first.num_particles) == (3, 5)
    assert first.offsets_E1.device.type == device.type
    del arrays, copies, first, second
    copier.close()


def test_a_copy_on_the_cpu_is_complete_and_independent_of_its_slot(arena: Arena) -> None:
    check(arena, torch.device("cpu"))


class Runtime:
    """CUDA's errors, modelled: that of a failed call stays until somebody asks, and torch asks after each kernel."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.last_error = 0

    def call(self, name: str) -> int:
        if self.fails != name:
            return 0
        self.last_error = 712
        return 712

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        return self.call("register")

    def cudaHostUnregister(self, pointer: int) -> int:
        return self.call("unregister")

    def kernel(self, *arguments: object, **words: object) -> None:
        error, self.last_error = self.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error: {error}")


@pytest.mark.parametrize("fails", ["register", "unregister", "neither"])
def test_an_arena_that_can_not_be_page_locked_is_slower_and_no_error_of_the_next_kernel(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    runtime = Runtime(fails)
    monkeypatch.setattr("torch.cuda.cudart", lambda: runtime)
    monkeypatch.setattr("torch.cuda.Stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr("torch.zeros", runtime.kernel)
    _warn_of_pageable_memory.cache_clear()
    for _ in range(2):  # two connections
        copier = make_copier(arena, torch.device("cuda"))
        runtime.kernel()
        copier.close()
        runtime.kernel()
    assert caplog.text.count("ulimit -l") == (fails == "register")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_cuda_a_failed_registration_is_no_error_of_the_next_kernel(arena: Arena) -> None:
    slab = torch.from_numpy(arena.whole())
    assert int(torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), arena.size_bytes, 0)) == 0
    try:
        check(arena, torch.device("cuda"))  # registers it a second time, which fails
    finally:
        torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_copy_on_cuda_is_complete_when_its_slot_is_released(arena: Arena) -> None:
    check(arena, torch.device("cuda"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_cuda_a_batch_is_complete_for_the_current_stream_as_soon_as_it_is_handed_over(arena: Arena) -> None:
    device = torch.device("cuda")
    copier = make_copier(arena, device)
    arrays = fill(arena)
    sums = []
    with torch.cuda.stream(copier._stream):  # type: ignore[union-attr]
        torch.cuda._sleep(50_000_000)  # the copies come late
    for index in range(2):
        microbatch = copier.copy(arrays, 3, 17, index)
        copier.hand_over(copier.mark())  # type: ignore[arg-type]
        sums.append(microbatch.particle_columns["muons"].sum())
    assert [float(value) for value in sums] == [sum(range(15)), sum(range(15, 30))]
    del arrays
    copier.close()
