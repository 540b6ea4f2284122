from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest

from common.errors import BadInputError
from common.transport import Arena

PAGE = 4096


def test_slots_are_parts_of_one_slab_and_do_not_overlap_and_there_are_no_others() -> None:
    with Arena.create(3, 2 * PAGE) as arena:
        for i in range(3):
            arena.slot(i)[:] = i + 1
        assert arena.size_bytes == 6 * PAGE
        assert np.array_equal(arena.whole(), np.repeat([1, 2, 3], 2 * PAGE))
        for index in (-1, 3):
            with pytest.raises(IndexError):
                arena.slot(index)


def test_the_size_is_sealed_and_no_peer_can_add_a_seal_with_which_later_decoders_could_not_write() -> None:
    with Arena.create(2, PAGE) as arena:
        for size_bytes in (0, PAGE, 10 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(arena.fd, size_bytes)
        assert os.fstat(arena.fd).st_size == 2 * PAGE
        with pytest.raises(PermissionError):
            fcntl.fcntl(arena.fd, 1033, 0x0010)  # F_ADD_SEALS, F_SEAL_FUTURE_WRITE


def test_all_pages_are_allocated_at_the_start() -> None:
    with Arena.create(4, 16 * PAGE) as arena:
        assert os.fstat(arena.fd).st_blocks * 512 >= arena.size_bytes


def test_an_arena_that_does_not_fit_into_memory_names_both_settings() -> None:
    with pytest.raises(BadInputError, match=r"stream\.slots = 8 × stream\.slot_mib = .*lower one of them"):
        Arena.create(8, 1 << 50)


def test_an_arena_waits_for_memory_as_long_as_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [0, PAGE, 2 * PAGE]
    monkeypatch.setattr("common.transport.available_memory_bytes", lambda: left.pop(0))
    Arena.create(2, PAGE, lambda: True).close()
    assert left == []
    left[:] = [0, PAGE]
    with pytest.raises(BadInputError, match="does not fit into memory"):
        Arena.create(2, PAGE, lambda: bool(left))


def test_a_reader_can_not_write() -> None:
    with Arena.create(1, PAGE) as arena, Arena.attach(os.dup(arena.fd), 1, PAGE, writable=False) as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader.slot(0)[0] = 1
        assert arena.slot(0)[0] == 0


def test_a_descriptor_of_another_size_is_refused_and_closed() -> None:
    with Arena.create(2, PAGE) as arena:
        fd = os.dup(arena.fd)
        with pytest.raises(ValueError, match="another size"):
            Arena.attach(fd, 3, PAGE, writable=False)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
