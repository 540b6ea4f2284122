from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.decoder.microbatch import microbatch_bounds


def offsets_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@given(st.lists(st.integers(0, 20), max_size=120), st.integers(1, 30), st.integers(20, 60))
def test_bounds_cut_the_events_into_microbatches_within_the_limits(
    counts: list[int], batch_events: int, max_particles: int
) -> None:
    bounds = microbatch_bounds(offsets_of(counts), batch_events, max_particles).tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(counts)
    for first, last in itertools.pairwise(bounds):
        assert first < last
        assert sum(counts[first:last]) <= max_particles
        assert last - first <= batch_events
        is_cut = last == len(counts) or last % batch_events == 0
        assert is_cut or sum(counts[first : last + 1]) > max_particles, "no cut without need"
    assert set(range(0, len(counts), batch_events)) <= set(bounds), "whole batches can be made of them"


def test_no_events_make_no_microbatch() -> None:
    assert microbatch_bounds(offsets_of([]), 8, 100).tolist() == [0]


def test_an_event_of_exactly_the_limit_is_a_microbatch_of_its_own() -> None:
    assert microbatch_bounds(offsets_of([3, 10, 1]), 8, 10).tolist() == [0, 1, 2, 3]


def test_events_without_particles_join_the_one_before() -> None:
    assert microbatch_bounds(offsets_of([10, 0, 0, 1]), 8, 10).tolist() == [0, 3, 4]


def test_an_event_above_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="event 1 has more than 10 particles"):
        microbatch_bounds(offsets_of([1, 11, 1]), 8, 10)
