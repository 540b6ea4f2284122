"""Padding for attention: what is packed comes back, and long events don't pad short ones."""

from __future__ import annotations

import pytest
import torch

from workloads.base.segments import Segments
from workloads.direction.models.transformer.padding import Padding, _groups

MIXED = [3, 0, 1, 40, 2, 0, 5, 7, 38, 4, 1, 6, 2, 2, 9, 3, 5, 36]


def segments_of(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts, dtype=torch.int64), sum(counts))


@pytest.mark.parametrize("counts", [MIXED, [1], [4, 0], [0, 0, 5]])
def test_rows_come_back_in_their_order(counts: list[int]) -> None:
    rows = torch.randn(sum(counts), 3)
    padding = Padding.of(segments_of(counts))
    assert torch.equal(padding.packed(padding.padded(rows)), rows)


def test_each_group_has_the_rows_of_its_events_where_they_are_present() -> None:
    segments = segments_of(MIXED)
    padding = Padding.of(segments)
    found = [
        rows[present, 0].long().tolist()
        for group, padded in zip(padding.groups, padding.padded(torch.arange(sum(MIXED)).unsqueeze(1)), strict=True)
        for rows, present in zip(padded, group.present_GN, strict=True)
    ]
    events = [
        list(range(int(start), int(start + count))) for start, count in zip(segments.starts_E, MIXED, strict=True)
    ]
    assert sorted(found) == sorted(event for event in events if event)


def test_events_without_sensors_are_in_no_group() -> None:
    assert Padding.of(segments_of([0, 0])).groups == ()
    assert all(group.present_GN.any(1).all() for group in Padding.of(segments_of(MIXED)).groups)


def test_a_long_event_does_not_pad_all_others() -> None:
    counts = [10] * 60 + [1000] * 4
    rows = sum(group.num_rows for group in Padding.of(segments_of(counts)).groups)
    assert rows < 0.3 * len(counts) * max(counts)


def test_a_gpu_has_one_group_unless_a_long_event_would_pad_too_many() -> None:
    """4,000 events as long as one of 256 sensors would have 8 GB of terms of the attention's bias."""
    few, many = (torch.tensor([0, 256, *[20] * num]) for num in (100, 4000))
    assert [len(group) for group in _groups(few, one=True)] == [101]
    found = list(_groups(many, one=True))
    assert sum(len(group) for group in found) == 4001
    assert sum(len(group) * int(many[group].max()) ** 2 for group in found) < 2 * int(many.square().sum())


def test_gradients_are_those_of_the_definition() -> None:
    padding = Padding.of(segments_of(MIXED))
    rows = torch.randn(sum(MIXED), 2, dtype=torch.float64, requires_grad=True)

    def squares(rows: torch.Tensor) -> torch.Tensor:
        return padding.packed([padded.square() for padded in padding.padded(rows)])

    assert torch.autograd.gradcheck(squares, rows)
