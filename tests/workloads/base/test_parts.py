"""Parts of a batch: their size, their order, and what happens when memory is short."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from line_task import points

from workloads.base.batch import Microbatch
from workloads.base.parts import CPU_CHUNK_PARTICLES, PartPool, halved_if_out_of_memory, most_particles

CPU = torch.device("cpu")


def test_parts_have_what_is_configured_or_suits_the_device_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"nvidia-small": 8 << 30, "nvidia-large": 80_000_000_000}
    of_device = {torch.device("cuda", number): bytes_ for number, bytes_ in enumerate(memory.values())}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=of_device[device])
    )
    small, large = of_device
    assert most_particles(1500, CPU, CPU_CHUNK_PARTICLES, 1 << 15) == 1500
    assert most_particles(0, CPU, CPU_CHUNK_PARTICLES, 1 << 15) == CPU_CHUNK_PARTICLES
    assert most_particles(0, CPU, 5000, 1 << 15) == 5000  # of a model that says so
    assert most_particles(3000, large, CPU_CHUNK_PARTICLES, 1 << 15) == 3000
    assert most_particles(0, small, CPU_CHUNK_PARTICLES, 1 << 15) == 1 << 17  # half of 8 GiB, 32 KiB each
    assert most_particles(0, large, CPU_CHUNK_PARTICLES, 1 << 15) == 1 << 20  # a power of two below 1,220,703
    assert most_particles(0, small, CPU_CHUNK_PARTICLES, 1 << 60) == 1
    assert most_particles(0, small, CPU_CHUNK_PARTICLES) == sys.maxsize  # a model that doesn't know its memory


def test_results_come_in_the_order_of_the_parts_and_random_numbers_are_drawn_in_it() -> None:
    last_is_done = threading.Event()
    drawn_by = []

    def draws() -> object:
        for number in range(3):
            drawn_by.append(threading.current_thread())
            yield 10 * number

    def compute(part: int, draw: int) -> int:
        if part == 0:
            assert last_is_done.wait(10)
        if part == 2:
            last_is_done.set()
        return part + draw

    assert list(PartPool(3).map(compute, range(3), draws())) == [0, 11, 22]
    assert drawn_by == [threading.current_thread()] * 3


def test_one_thread_computes_in_the_calling_thread() -> None:
    assert list(PartPool(1).map(lambda part: threading.current_thread(), [1])) == [threading.current_thread()]


def test_without_need_nothing_is_halved() -> None:
    parts = [points(3, 4), points(1)]
    assert halved_if_out_of_memory(lambda parts: len(parts), parts) == (2, parts)


def test_out_of_memory_every_part_is_halved_once(caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    def update(parts: list[Microbatch]) -> int:
        tried.append([part.num_particles for part in parts])
        if len(tried) == 1:
            raise torch.OutOfMemoryError("scripted")
        return 7

    result, parts = halved_if_out_of_memory(update, [points(3, 1, 2), points(5)])

    assert result == 7
    assert tried == [[6, 5], [3, 3, 5]]  # a single event can't be divided
    assert [part.num_particles for part in parts] == [3, 3, 5]
    assert [record.message for record in caplog.records] == [
        "out of memory with 11 particles: the batch is split in two"
    ]


def test_memory_that_is_short_for_halves_ends_the_step() -> None:
    tried = []

    def update(parts: list[Microbatch]) -> None:
        tried.append(len(parts))
        raise torch.OutOfMemoryError("scripted")

    with pytest.raises(torch.OutOfMemoryError, match="scripted"):
        halved_if_out_of_memory(update, [points(2, 2)])
    assert tried == [1, 2]


def test_another_error_passes() -> None:
    def update(parts: list[Microbatch]) -> None:
        raise ValueError("no memory's fault")

    with pytest.raises(ValueError, match="fault"):
        halved_if_out_of_memory(update, [points(2, 2)])
