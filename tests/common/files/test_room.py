from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from common.files.room import Room, joined
from common.schema import Column

COLUMN = Column("pulses", "particle", "<f4", ("time", "charge"))


def filled(room: Room, sizes: list[int]) -> list[npt.NDArray[np.generic]]:
    """Pieces of the room with counted numbers."""
    pieces, first = [], 0
    for size in sizes:
        piece = room.empty(COLUMN, size)
        piece[:] = np.arange(first, first + size)[:, None] * [1, 10]
        pieces.append(piece)
        first += size
    return pieces


def test_pieces_of_a_room_are_joined_without_a_copy() -> None:
    pieces = filled(Room(20), [3, 0, 5, 4])
    whole = joined(pieces)
    assert np.array_equal(whole, np.concatenate(pieces))
    assert np.shares_memory(whole, pieces[0])
    later = joined(pieces[2:])
    assert np.array_equal(later, np.concatenate(pieces[2:]))
    assert np.shares_memory(later, pieces[2])


@pytest.mark.parametrize("order", [[1, 0], [0, 2], [0, 0]])
def test_pieces_that_do_not_follow_one_another_are_copied(order: list[int]) -> None:
    pieces = [filled(Room(20), [3, 3, 3])[index] for index in order]
    one_room = filled(Room(20), [3, 3, 3])
    for some in (pieces, [one_room[index] for index in order], [one_room[0], one_room[1][::-1]]):
        assert np.array_equal(joined(some), np.concatenate(some))


def test_slices_of_an_array_that_is_not_in_the_pieces_form_are_copied_or_seen_right() -> None:
    flat = np.arange(12, dtype=np.float32)
    pieces = [flat[2:6].reshape(2, 2), flat[6:10].reshape(2, 2)]
    assert np.array_equal(joined(pieces), [[2, 3], [4, 5], [6, 7], [8, 9]])
    wide = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert np.array_equal(joined([wide[1:3, :1], wide[3:4, :1]]), [[2], [4], [6]])


def test_files_with_more_than_they_promised_get_room_elsewhere() -> None:
    pieces = filled(Room(5), [3, 3, 2])
    assert np.array_equal(joined(pieces)[:, 0], np.arange(8))
    assert np.array_equal(joined(pieces)[:, 1], 10 * np.arange(8))
