"""Ragged rows: events that move with their particles, room for pieces, particles that are dropped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_layers import both_ways, compiled

from common.files import rows as ragged
from common.schema import Column

__all__ = ["both_ways"]

COLUMN = Column("pulses", "particle", "<f4", ("time", "charge"))


@given(st.lists(st.lists(st.integers(0, 6), max_size=10), min_size=1, max_size=4), st.data(), st.integers(1, 3))
def test_rows_move_with_all_their_particles(counts: list[list[int]], data: st.DataObject, fields: int) -> None:
    flat = [count for piece in counts for count in piece]
    order = np.array(data.draw(st.permutations(range(len(flat)))), np.int64)
    order = order[: data.draw(st.integers(0, len(flat)))]  # some rows are left out
    total = sum(flat)
    particles = np.arange(total * fields, dtype=np.float32).reshape(total, fields)
    splits = np.cumsum([sum(piece) for piece in counts])[:-1]
    pieces = np.split(particles, splits)
    out = np.full((sum(flat[i] for i in order), fields), -1, np.float32)

    ragged.take_particles(list(pieces), [np.array(piece, np.int64) for piece in counts], order, out)

    offsets = ragged.offsets_of(np.array(flat, np.int64))
    expected = [particles[offsets[i] : offsets[i + 1]] for i in order]
    assert np.array_equal(out, np.concatenate([np.empty((0, fields)), *expected]))


@pytest.mark.parametrize("dtype", ["|b1", "<i2", "<f4", "<u8"])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_rows_of_all_pieces_are_taken_in_order(dtype: str, width: int) -> None:
    rows = np.arange(10 * width).reshape(10, width).astype(dtype)
    order = np.array([9, 0, 4], np.int64)
    out = np.zeros((3, width), dtype)
    ragged.take_rows([rows[:4], rows[4:5], rows[5:]], order, out)
    assert np.array_equal(out, rows[order])


@pytest.mark.process
@pytest.mark.parametrize(("row", "num_out"), [(-1, 2), (3, 2), (1 << 62, 2), (0, 1), (0, 3)])
def test_a_row_that_is_not_there_or_a_result_of_another_size_is_refused_in_cpp(row: int, num_out: int) -> None:
    particles, offsets = np.ones((6, 1)), np.array([0, 2, 4, 6], np.int64)
    order, out = np.array([row], np.int64), np.zeros((3, 1))
    library = compiled(ragged.FILES)
    assert library.take_particles(
        *(
            ragged.address(particles),
            ragged.address(offsets),
            3,
            8,
            ragged.address(order),
            1,
            ragged.address(out),
            num_out,
        )
    ) == (-1)
    if row:
        assert library.take_rows(ragged.address(particles), 3, 8, ragged.address(order), 1, ragged.address(out)) == -1


def filled(room: ragged.Room, sizes: list[int]) -> list[npt.NDArray[np.generic]]:
    """Pieces of the room with counted numbers."""
    pieces, first = [], 0
    for size in sizes:
        piece = room.empty(COLUMN, size)
        piece[:] = np.arange(first, first + size)[:, None] * [1, 10]
        pieces.append(piece)
        first += size
    return pieces


def test_pieces_of_a_room_are_joined_without_a_copy() -> None:
    pieces = filled(ragged.Room(20), [3, 0, 5, 4])
    whole = ragged.joined(pieces)
    assert np.array_equal(whole, np.concatenate(pieces))
    assert np.shares_memory(whole, pieces[0])
    later = ragged.joined(pieces[2:])
    assert np.array_equal(later, np.concatenate(pieces[2:]))
    assert np.shares_memory(later, pieces[2])


@pytest.mark.parametrize("order", [[1, 0], [0, 2], [0, 0]])
def test_pieces_that_do_not_follow_one_another_are_copied(order: list[int]) -> None:
    pieces = [filled(ragged.Room(20), [3, 3, 3])[index] for index in order]
    one_room = filled(ragged.Room(20), [3, 3, 3])
    for some in (pieces, [one_room[index] for index in order], [one_room[0], one_room[1][::-1]]):
        assert np.array_equal(ragged.joined(some), np.concatenate(some))


def test_files_with_more_than_they_promised_get_room_elsewhere() -> None:
    pieces = filled(ragged.Room(5), [3, 3, 2])
    assert np.array_equal(ragged.joined(pieces)[:, 0], np.arange(8))
    assert np.array_equal(ragged.joined(pieces)[:, 1], 10 * np.arange(8))


@pytest.mark.parametrize("only_fillers", [False, True])
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_dropped_particles_leave_the_others_in_their_events(
    only_fillers: bool, counts: list[int], data: st.DataObject
) -> None:
    of_events = [
        [count > 1] * count if only_fillers else data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        for count in counts
    ]
    keep = np.array([one for event in of_events for one in event], np.bool_)
    energy_P = np.arange(2.0 * len(keep), dtype=np.float32).reshape(-1, 2)
    rows = ragged.RaggedRows(np.array(counts, np.int64), {}, {"muons": energy_P}, np.zeros(0, np.int64), None, 3)
    found = ragged.drop_particles(rows, keep)
    assert found.counts.tolist() == [sum(event) for event in of_events]
    assert found.particle_columns["muons"].tolist() == [
        row for row, kept in zip(energy_P.tolist(), keep, strict=True) if kept
    ]
    assert found.particles_dropped == 3 + sum(not one for one in keep)
