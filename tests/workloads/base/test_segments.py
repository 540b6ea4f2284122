"""Segment operations against loops over the events."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.base.segments import (
    Segments,
    pool,
    segment_argmax,
    segment_sum,
    sort_within_events,
    spread,
    unpool,
)

COUNTS = [0, 3, 1, 0, 4, 0]
POOLS = ("mean", "sum", "max")


@pytest.fixture
def segments() -> Segments:
    return Segments.from_counts(torch.tensor(COUNTS), sum(COUNTS))


@pytest.fixture
def values_PD() -> Tensor:
    return torch.randn(sum(COUNTS), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loop(values_PD: Tensor, reduce: str) -> Tensor:
    rows = []
    for part in values_PD.split(COUNTS):
        if len(part) == 0:
            rows.append(torch.zeros(values_PD.shape[1], dtype=values_PD.dtype))
        else:
            rows.append(part.amax(0) if reduce == "max" else getattr(part, reduce)(0))
    return torch.stack(rows)


def pooled(values_PD: Tensor, segments: Segments, kind: str) -> Tensor:
    return pool(values_PD, segments, (kind,), segment_argmax(values_PD, segments) if kind == "max" else None)


def test_each_particle_belongs_to_the_event_whose_offsets_enclose_it() -> None:
    offsets = torch.tensor([0, 0, 3, 4, 4, 8, 8])

    segments = Segments.from_offsets(offsets, 8)

    assert segments.event_P.tolist() == [1, 1, 1, 2, 4, 4, 4, 4]
    assert segments.counts_E.tolist() == COUNTS
    assert (segments.num_events, segments.num_particles) == (6, 8)


def test_sum_mean_and_max_equal_a_loop_and_are_zero_for_empty_events(segments: Segments, values_PD: Tensor) -> None:
    values_PD = values_PD - 10  # all negative: a maximum that starts from 0 would be seen

    torch.testing.assert_close(segment_sum(values_PD, segments), loop(values_PD, "sum"))
    for kind in POOLS:
        torch.testing.assert_close(pooled(values_PD, segments, kind), loop(values_PD, kind))
    torch.testing.assert_close(segment_sum(values_PD[:, 0], segments), loop(values_PD, "sum")[:, 0])


def test_sum_mean_and_max_have_right_first_and_second_derivatives(segments: Segments, values_PD: Tensor) -> None:
    inputs = values_PD.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: segment_sum(x, segments), inputs)
    assert torch.autograd.gradgradcheck(lambda x: segment_sum(x**3, segments), inputs)
    for kind in POOLS:
        assert torch.autograd.gradcheck(lambda x, kind=kind: pooled(x, segments, kind), inputs)
        assert torch.autograd.gradgradcheck(lambda x, kind=kind: pooled(x**3, segments, kind), inputs)


def test_the_deterministic_mode_gives_the_same_bits(
    segments: Segments, values_PD: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    argmax_ED = segment_argmax(values_PD, segments)
    slopes_ED = torch.randn(len(COUNTS), len(POOLS) * values_PD.shape[1], generator=torch.Generator().manual_seed(1))
    slopes_ED = slopes_ED.to(values_PD.dtype)
    expected_PD = unpool(slopes_ED, segments, POOLS, argmax_ED)
    only_max_PD = unpool(slopes_ED[:, : values_PD.shape[1]], segments, ("max",), argmax_ED)
    monkeypatch.setattr("torch.are_deterministic_algorithms_enabled", lambda: True)
    assert torch.equal(unpool(slopes_ED, segments, POOLS, argmax_ED), expected_PD)
    assert torch.equal(unpool(slopes_ED[:, : values_PD.shape[1]], segments, ("max",), argmax_ED), only_max_PD)


def test_spread_repeats_the_row_of_an_event_for_each_of_its_particles(segments: Segments) -> None:
    rows = torch.arange(6.0).unsqueeze(1)

    assert spread(rows, segments).squeeze(1).tolist() == [1, 1, 1, 2, 4, 4, 4, 4]


def test_sorting_orders_the_particles_of_each_event_and_mixes_none(segments: Segments) -> None:
    key = torch.tensor([2.0, 1.0, 3.0, -5.0, 9.0, 8.0, 9.0, 7.0])

    permutation = sort_within_events(key, segments)

    assert permutation.tolist() == [1, 0, 2, 3, 7, 5, 4, 6]
    assert torch.equal(segments.event_P[permutation], segments.event_P)


def test_no_particles_at_all_give_zeros_for_each_event() -> None:
    segments = Segments.from_counts(torch.zeros(3, dtype=torch.int64), 0)
    nothing = torch.zeros(0, 2)

    assert torch.equal(segment_sum(nothing, segments), torch.zeros(3, 2))
    for kind in POOLS:
        assert torch.equal(pooled(nothing, segments, kind), torch.zeros(3, 2))
    assert sort_within_events(nothing[:, 0], segments).shape == (0,)


def test_the_place_of_an_empty_events_maximum_is_a_place_on_every_device(
    segments: Segments, values_PD: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bag = torch._embedding_bag

    def as_on_cuda(*arguments: Any, **settings: Any) -> tuple[Tensor, ...]:
        *others, index = bag(*arguments, **settings)
        return (*others, torch.where(segments.counts_E.unsqueeze(1) > 0, index, -1))

    monkeypatch.setattr(torch, "_embedding_bag", as_on_cuda)

    assert segment_argmax(values_PD, segments).min() == 0
