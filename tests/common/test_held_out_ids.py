"""Events held out of training: which ones, on every platform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.held_out import is_held_out

MASK = 2**64 - 1
KEPT = [10, 18, 21, 41, 48, 68, 82, 83]


def splitmix64(state: int) -> int:
    """Reference in Python's whole numbers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_reference_is_splitmix64() -> None:
    states = [1234567 + i * 0x9E3779B97F4A7C15 for i in range(3)]  # as its authors' C code goes on
    assert [splitmix64(state) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), max_size=20), st.floats(0, 1, exclude_max=True))
def test_the_choice_is_that_of_whole_numbers(ids: list[tuple[int, int]], share: float) -> None:
    expected = [splitmix64(splitmix64(a & MASK) ^ (b & MASK)) < int(share * 2**64) for a, b in ids]
    assert is_held_out(np.array(ids, np.int64).reshape(-1, 2), share).tolist() == expected


@pytest.mark.parametrize("dtype", ["<i2", "<i4", "<u4", "<i8", "<u8"])
def test_the_type_of_an_id_makes_no_difference(dtype: str) -> None:
    ids = np.arange(10_000).reshape(-1, 1)
    assert (is_held_out(ids.astype(dtype), 0.3) == is_held_out(ids, 0.3)).all()
    every_second = np.stack([ids[:, 0], ids[:, 0]], 1).astype(dtype)[:, ::2]
    assert (is_held_out(every_second, 0.3) == is_held_out(ids, 0.3)).all(), "also in a column with other strides"


def test_the_first_ids_that_are_held_out_are_kept_for_ever() -> None:
    found = np.flatnonzero(is_held_out(np.arange(100).reshape(-1, 1), 0.1)).tolist()
    assert found == [i for i in range(100) if splitmix64(i) < int(0.1 * 2**64)] == KEPT
    assert is_held_out(np.array([[2**64 - 1, 0]], np.uint64), 0.5).tolist() == [splitmix64(splitmix64(MASK)) < 2**63]


def test_the_share_is_met_for_ids_in_a_row_and_a_larger_one_includes_a_smaller_one() -> None:
    ids = np.arange(200_000, dtype=np.uint64).reshape(-1, 1) * np.uint64(1000)
    small, large = is_held_out(ids, 0.02), is_held_out(ids, 0.2)
    assert small.mean() == pytest.approx(0.02, abs=0.002)
    assert large.mean() == pytest.approx(0.2, abs=0.005)
    assert large[small].all()
    assert not is_held_out(ids, 0.0).any()
