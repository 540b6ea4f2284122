from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_layers import both_ways, compiled

from common.files.gather import offsets_of, take_particles, take_rows
from common.files.native import FILES, address

__all__ = ["both_ways"]


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

    take_particles(list(pieces), [np.array(piece, np.int64) for piece in counts], order, out)

    offsets = offsets_of(np.array(flat, np.int64))
    expected = [particles[offsets[i] : offsets[i + 1]] for i in order]
    assert np.array_equal(out, np.concatenate([np.empty((0, fields)), *expected]))


@pytest.mark.parametrize("dtype", ["|b1", "<i2", "<f4", "<u8"])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_rows_of_all_pieces_are_taken_in_order(dtype: str, width: int) -> None:
    rows = np.arange(10 * width).reshape(10, width).astype(dtype)
    order = np.array([9, 0, 4], np.int64)
    out = np.zeros((3, width), dtype)
    take_rows([rows[:4], rows[4:5], rows[5:]], order, out)
    assert np.array_equal(out, rows[order])


@pytest.mark.process
@pytest.mark.parametrize(("row", "num_out"), [(-1, 2), (3, 2), (1 << 62, 2), (0, 1), (0, 3)])
def test_a_row_that_is_not_there_or_a_result_of_another_size_is_refused_in_cpp(row: int, num_out: int) -> None:
    particles, offsets = np.ones((6, 1)), np.array([0, 2, 4, 6], np.int64)
    order, out = np.array([row], np.int64), np.zeros((3, 1))
    library = compiled(FILES)
    assert library.take_particles(
        *(address(particles), address(offsets), 3, 8, address(order), 1, address(out), num_out)
    ) == (-1)
    if row:
        assert library.take_rows(address(particles), 3, 8, address(order), 1, address(out)) == -1
