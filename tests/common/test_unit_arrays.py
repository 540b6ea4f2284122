from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import unit_arrays
from common.messages import Layout
from common.schema import UnitArrays
from workloads.muons.columns import MUONS

HEADER = unit_arrays.SlotHeader("0123456789abcdef" * 2, k=5, lease=9, layout=Layout(3, 7, 2))

layouts = st.builds(Layout, st.integers(0, 50), st.integers(0, 200), st.integers(0, 50))


def all_arrays(arrays: UnitArrays) -> list[np.ndarray]:
    return [arrays.offsets, arrays.microbatch_bounds, *arrays.particle_columns.values(), *arrays.event_columns.values()]


def slot_of(num_bytes: int) -> np.ndarray:
    """(num_bytes,) uint8, aligned as a slot is."""
    raw = np.zeros(num_bytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + num_bytes]


@settings(deadline=None)
@given(layouts)
def test_arrays_are_aligned_behind_the_header_and_the_other_side_reads_them_from_the_counts_alone(
    layout: Layout,
) -> None:
    slot = slot_of(unit_arrays.slot_bytes_needed(MUONS, layout))
    for number, array in enumerate(all_arrays(unit_arrays.unit_arrays(slot, MUONS, layout))):
        start = array.__array_interface__["data"][0] - slot.ctypes.data
        assert not array.size or (start % 64 == 0 and start >= 64)
        array[...] = number + 1
    for number, array in enumerate(all_arrays(unit_arrays.unit_arrays(slot.copy(), MUONS, layout))):
        assert (array == number + 1).all(), "none overlaps another"


def test_a_unit_needs_exactly_its_bytes() -> None:
    # Header, 4 offsets, 3 bounds, 7 × 3 f4, 3 × 4 f4, 3 × 2 u8, 3 × i4, 3 × i8: each rounded up to 64 bytes.
    assert unit_arrays.slot_bytes_needed(MUONS, HEADER.layout) == 64 + 64 + 64 + 128 + 64 + 64 + 64 + 64


@pytest.mark.parametrize(
    "expected",
    [
        *(replace(HEADER, **change) for change in ({"plan_hash": "f" * 32}, {"k": 6}, {"lease": 8})),
        *(replace(HEADER, layout=layout) for layout in (Layout(2, 7, 2), Layout(3, 8, 2), Layout(3, 7, 1))),
    ],
)
def test_a_slot_with_another_unit_is_told(expected: unit_arrays.SlotHeader) -> None:
    slot = np.zeros(4096, np.uint8)
    unit_arrays.write_header(slot, HEADER)
    with pytest.raises(unit_arrays.SlotMismatch, match="should hold"):
        unit_arrays.check_header(slot, expected)


@pytest.mark.parametrize("place", [0, 4])
def test_a_slot_without_magic_or_version_is_told(place: int) -> None:
    slot = np.zeros(4096, np.uint8)
    unit_arrays.write_header(slot, HEADER)
    slot[place] ^= 0xFF
    with pytest.raises(unit_arrays.SlotMismatch, match="no header of version"):
        unit_arrays.check_header(slot, HEADER)


def filled() -> UnitArrays:
    """Four events of two files, in two microbatches."""
    arrays = unit_arrays.unit_arrays(
        slot_of(unit_arrays.slot_bytes_needed(MUONS, Layout(4, 7, 2))), MUONS, Layout(4, 7, 2)
    )
    arrays.offsets[:] = [0, 1, 3, 6, 7]
    arrays.microbatch_bounds[:] = [0, 2, 4]
    arrays.event_columns["source_file"][:, 0] = [3, 3, 5, 5]
    arrays.event_columns["source_row"][:, 0] = [10, 11, 10, 12]
    return arrays


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("source_row", [11, 10, 10, 12]),  # two events of one microbatch in the other order
        ("source_row", [10, 11, 10, 13]),
        ("source_file", [3, 5, 3, 5]),
        ("microbatch_bounds", [0, 1, 4]),
        ("offsets", [0, 1, 4, 6, 7]),
    ],
)
def test_the_digest_of_the_content_changes_with_each_event_its_place_and_its_microbatch(
    name: str, values: list[int]
) -> None:
    arrays, changed = filled(), filled()
    column = getattr(changed, name) if hasattr(changed, name) else changed.event_columns[name][:, 0]
    column[:] = values
    assert len(unit_arrays.content_digest(arrays)) == 32
    assert unit_arrays.content_digest(changed) != unit_arrays.content_digest(arrays)
