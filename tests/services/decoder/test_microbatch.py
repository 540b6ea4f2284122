from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.decoder.microbatch import microbatch_bounds


def offsets_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def fewest(counts: list[int], max_particles: int, max_squared: int) -> int:
    """Microbatches that a greedy cut makes: there is no way with fewer."""
    number, held, squared = 1, 0, 0
    for count in counts:
        if held + count > max_particles or 0 < max_squared < squared + count**2:
            number, held, squared = number + 1, 0, 0
        held, squared = held + count, squared + count**2
    return number


@given(
    st.lists(st.integers(0, 20), max_size=120),
    st.integers(1, 30),
    st.integers(20, 60),
    st.one_of(st.just(0), st.integers(400, 2000)),
)
def test_bounds_cut_the_events_into_microbatches_within_the_limits(
    counts: list[int], batch_events: int, max_particles: int, max_squared: int
) -> None:
    bounds = microbatch_bounds(offsets_of(counts), batch_events, max_particles, max_squared).tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(counts)
    for first, last in itertools.pairwise(bounds):
        assert first < last
        assert sum(counts[first:last]) <= max_particles
        assert not 0 < max_squared < sum(count**2 for count in counts[first:last])
    edges = [edge for edge in range(0, len(counts), batch_events)]
    if len(edges) > 1 and 2 * (len(counts) - edges[-1]) < batch_events:
        edges.pop()  # the last piece would be tiny
    assert set(edges) <= set(bounds), "whole batches can be made of them"
    for first, last in itertools.pairwise([*edges, len(counts)]):
        number = sum(first <= bound < last for bound in bounds)
        assert number == fewest(counts[first:last], max_particles, max_squared), "no cut without need"


@given(st.lists(st.integers(0, 10), min_size=1, max_size=200), st.integers(40, 100))
def test_microbatches_of_one_batch_are_balanced(counts: list[int], max_particles: int) -> None:
    bounds = microbatch_bounds(offsets_of(counts), len(counts), max_particles).tolist()
    average = sum(counts) / (len(bounds) - 1)
    for first, last in itertools.pairwise(bounds):
        assert sum(counts[first:last]) >= average - 2 * max(counts), "none is tiny"


def test_a_last_piece_of_less_than_half_a_batch_joins_the_batch_before() -> None:
    assert microbatch_bounds(offsets_of([1] * 19), 8, 100).tolist() == [0, 8, 19]
    assert microbatch_bounds(offsets_of([1] * 20), 8, 100).tolist() == [0, 8, 16, 20]
    assert microbatch_bounds(offsets_of([1] * 3), 8, 100).tolist() == [0, 3]


def test_no_events_make_no_microbatch() -> None:
    assert microbatch_bounds(offsets_of([]), 8, 100).tolist() == [0]


def test_an_event_of_exactly_the_limit_is_a_microbatch_of_its_own() -> None:
    assert microbatch_bounds(offsets_of([3, 10, 1]), 8, 10).tolist() == [0, 1, 2, 3]


def test_many_small_events_and_few_large_ones_may_cost_the_same() -> None:
    assert microbatch_bounds(offsets_of([1] * 16 + [4, 4]), 18, 1000, 16).tolist() == [0, 16, 17, 18]
    assert microbatch_bounds(offsets_of([1] * 16 + [4, 4]), 18, 1000, 48).tolist() == [0, 18]


def test_the_squares_of_large_events_do_not_overflow() -> None:
    counts = [178_000] * 5 + [10]
    assert microbatch_bounds(offsets_of(counts), 8, 10**9, 2 * 178_000**2).tolist() == [0, 2, 4, 6]


def test_an_event_above_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="event 1 has more than 10 particles"):
        microbatch_bounds(offsets_of([1, 11, 1]), 8, 10)
    with pytest.raises(ValueError, match="event 1 has more than 24 squared particles"):
        microbatch_bounds(offsets_of([1, 5, 1]), 8, 10, 24)
