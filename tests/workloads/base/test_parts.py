"""Parts of a batch: their size, their order, and what happens when memory is short."""

from __future__ import annotations

import threading

import pytest
import torch
from line_task import points

from workloads.base.batch import Microbatch
from workloads.base.parts import CPU_CHUNK_PARTICLES, PartPool, chunks, halved_if_out_of_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_parts_have_at_most_so_many_particles_and_by_default_what_suits_the_device() -> None:
    microbatch = points(*[1000] * 5)
    whole = points(CPU_CHUNK_PARTICLES, 1, CPU_CHUNK_PARTICLES - 1, 1)

    assert [part.num_particles for part in chunks(microbatch, 1500, CPU)] == [1000] * 5
    assert [part.num_particles for part in chunks(whole, 0, CPU)] == [CPU_CHUNK_PARTICLES, CPU_CHUNK_PARTICLES, 1]
    assert [part.num_particles for part in chunks(microbatch, 0, CPU, 2500)] == [2000, 2000, 1000]  # by the model
    assert list(chunks(microbatch, 0, CUDA)) == [microbatch]
    assert [part.num_particles for part in chunks(microbatch, 3000, CUDA)] == [3000, 2000]


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
