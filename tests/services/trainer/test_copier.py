"""Units out of slots: the same numbers on every device, in one transfer, and a slot that is free once it is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda

from common.messages import Layout
from common.schema import EventSchema, UnitArrays
from common.transport import Arena
from common.unit_arrays import unit_arrays
from services.trainer.copier import CudaCopier, _warn_of_pageable_memory, make_copier
from workloads.base.batch import Microbatch
from workloads.direction.columns import DIRECTION
from workloads.muons.columns import MUONS

COUNTS = np.array([2, 0, 3, 1, 4])
BOUNDS = (0, 3, 5)
CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(2, 20_971) as arena:  # slots of the size that `stream.slot_mib=0.02` gives: no multiple of 64
        yield arena


def fill(
    arena: Arena, schema: EventSchema = MUONS, repeat: int = 1, slot: int = 1, bounds: Sequence[int] = BOUNDS
) -> UnitArrays:
    counts = np.tile(COUNTS, repeat)
    arrays = unit_arrays(arena.slot(slot), schema, Layout(len(counts), int(counts.sum()), len(bounds) - 1))
    arrays.offsets[:] = np.concatenate([[0], np.cumsum(counts)])
    arrays.microbatch_bounds[:] = bounds
    for columns in (arrays.particle_columns, arrays.event_columns):
        for column in columns.values():
            column[:] = np.arange(column.size).reshape(column.shape)
    return arrays


def check(first: Microbatch, second: Microbatch) -> None:
    assert first.offsets_E1.tolist() == first.host_offsets_E1.tolist() == [0, 2, 2, 5]
    assert second.offsets_E1.tolist() == second.host_offsets_E1.tolist() == [0, 1, 5]
    assert first.particle_columns["muons"].cpu().ravel().tolist() == list(range(15))
    assert second.particle_columns["muons"].cpu().ravel().tolist() == list(range(15, 30))
    assert second.event_columns["primary"].cpu().ravel().tolist() == list(range(12, 20))
    assert (first.event_columns.keys(), first.particle_columns.keys()) == ({"primary"}, {"muons"})
    assert (second.epoch, second.unit, second.index) == (3, 17, 1)
    assert (first.num_events, first.num_particles) == (3, 5)


def copied(
    arena: Arena,
    device: torch.device,
    arrays: UnitArrays | None = None,
    pieces: Sequence[tuple[int, int]] = ((0, 1), (1, 2)),
) -> list[Microbatch]:
    copier = make_copier(arena, device, MUONS.step_columns)
    unit = copier.begin(fill(arena) if arrays is None else arrays, 3, 17)
    copies = [unit.microbatch(*piece) for piece in pieces]
    mark = copier.mark()  # type: ignore[func-returns-value]
    unit.wait()
    arena.slot(1)[:] = 255  # the slot belongs to a decoder again: a copy must not change with it
    copier.hand_over(mark)
    del unit
    copier.close()
    return copies


def test_a_copy_on_the_cpu_is_complete_and_independent_of_its_slot(arena: Arena) -> None:
    check(*copied(arena, CPU))


def test_a_copy_on_a_fake_gpu_is_complete_once_it_was_waited_for(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    check(*copied(arena, GPU))
    assert cuda.waits == 1
    assert cuda.shared == 3, "the transfer and the offsets of two microbatches"


def test_a_unit_of_muons_goes_to_the_gpu_in_one_transfer_without_ids_and_sources(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch)
    copier = make_copier(arena, GPU, MUONS.step_columns)
    arrays = fill(arena, repeat=40)
    unit = copier.begin(arrays, 0, 0)
    for index in range(2):
        unit.microbatch(index)
    needed = (
        arrays.offsets,
        arrays.microbatch_bounds,
        arrays.particle_columns["muons"],
        arrays.event_columns["primary"],
    )
    (num_copied,) = cuda.copied_bytes
    assert 0 <= num_copied - sum(column.nbytes for column in needed) < len(needed) * 64, "no more than the alignment"
    unit.wait()


def test_a_column_of_ids_between_others_stays_on_the_host_where_that_is_worth_a_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Arena.create(1, 1 << 20) as arena:
        for repeat, transfers in ((10, 1), (600, 2)):
            cuda = FakeCuda(monkeypatch)
            copier = make_copier(arena, GPU, DIRECTION.step_columns)
            arrays = fill(arena, DIRECTION, repeat, slot=0)
            unit = copier.begin(arrays, 0, 0)
            found = unit.microbatch(1)
            unit.wait()
            assert len(cuda.copied_bytes) == transfers
            assert "event_id" not in found.event_columns
            for name, column in found.event_columns.items():
                assert column.numpy().tolist() == arrays.event_columns[name][3:5].tolist()
            for name, column in found.particle_columns.items():
                assert column.numpy().tolist() == arrays.particle_columns[name][5:10].tolist()
            del arrays, unit, found
            copier.close()
            monkeypatch.undo()


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_events_without_particles_are_copied_too(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    FakeCuda(monkeypatch)
    arrays = unit_arrays(arena.slot(0), MUONS, Layout(2, 0, 1))
    arrays.offsets[:] = 0
    arrays.microbatch_bounds[:] = [0, 2]
    arrays.event_columns["primary"][:] = 7
    (found,) = copied(arena, device, arrays, [(0, 1)])
    assert found.particle_columns["muons"].shape == (0, 3)
    assert found.event_columns["primary"].tolist() == [[7.0] * 4] * 2
    assert found.offsets_E1.tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_neighbouring_microbatches_come_as_one_and_those_of_other_trainers_not_at_all(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    FakeCuda(monkeypatch)
    found = copied(arena, device, fill(arena, bounds=(0, 1, 3, 4, 5)), [(1, 3), (3, 4)])
    assert [one.index for one in found] == [1, 3]
    assert [one.offsets_E1.tolist() for one in found] == [[0, 0, 3, 4], [0, 4]]
    assert [one.host_offsets_E1.tolist() for one in found] == [[0, 0, 3, 4], [0, 4]]
    assert [(one.num_events, one.num_particles) for one in found] == [(3, 4), (1, 4)]
    assert [one.particle_columns["muons"].ravel().tolist() for one in found] == [[*range(6, 18)], [*range(18, 30)]]
    assert [one.event_columns["primary"].ravel().tolist() for one in found] == [[*range(4, 16)], [*range(16, 20)]]


def test_a_batch_ahead_is_not_waited_for_when_another_is_handed_over(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch)
    copier = CudaCopier(arena, GPU, MUONS.step_columns)
    unit = copier.begin(fill(arena), 0, 0)
    unit.microbatch(0)
    first = copier.mark()
    unit.microbatch(1)
    copier.mark()
    copier.hand_over(first)  # type: ignore[arg-type]
    (stream,) = cuda.streams
    assert stream.work, "the offsets of the second one"
    assert cuda.waits == 0, "the host goes on"
    copier.close()
    assert not stream.work


@pytest.mark.parametrize("fails", ["register", "unregister", "neither"])
def test_an_arena_that_can_not_be_page_locked_is_slower_and_no_error_of_the_next_kernel(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    cuda = FakeCuda(monkeypatch, fails)
    monkeypatch.setattr("torch.zeros", cuda.kernel)
    _warn_of_pageable_memory.cache_clear()
    for _ in range(2):  # two connections
        copier = make_copier(arena, GPU, MUONS.step_columns)
        cuda.kernel()
        copier.close()
        cuda.kernel()
    assert caplog.text.count("ulimit -l") == (fails == "register")


@pytest.mark.cuda
@needs_cuda
def test_on_cuda_a_failed_registration_is_no_error_of_the_next_kernel(arena: Arena) -> None:
    slab = torch.from_numpy(arena.whole())
    assert int(torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), arena.size_bytes, 0)) == 0
    try:
        check(*copied(arena, GPU))  # registers it a second time, which fails
    finally:
        torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())


@pytest.mark.cuda
@needs_cuda
def test_a_copy_on_cuda_is_complete_once_it_was_waited_for(arena: Arena) -> None:
    check(*copied(arena, GPU))


@pytest.mark.cuda
@needs_cuda
def test_on_cuda_a_batch_is_complete_for_the_current_stream_as_soon_as_it_is_handed_over(arena: Arena) -> None:
    copier = CudaCopier(arena, GPU, MUONS.step_columns)
    sums = []
    with torch.cuda.stream(copier._stream):
        torch.cuda._sleep(50_000_000)  # the copies come late
    unit = copier.begin(fill(arena), 3, 17)
    for index in range(2):
        microbatch = unit.microbatch(index)
        copier.hand_over(copier.mark())
        sums.append(microbatch.particle_columns["muons"].sum())
    assert [float(value) for value in sums] == [sum(range(15)), sum(range(15, 30))]
    del unit
    copier.close()
