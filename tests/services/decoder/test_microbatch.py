"""Bounds of microbatches, and batches of events of similar lengths."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from decoded_files import decoded, planned
from hypothesis import given
from hypothesis import strategies as st
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.plan import Stream, generator
from services.decoder.microbatch import bucketed, microbatch_bounds
from workloads.muons.columns import MUONS

Int64 = npt.NDArray[np.int64]


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


def test_the_squares_of_large_events_do_not_overflow() -> None:
    counts = [178_000] * 5 + [10]
    assert microbatch_bounds(offsets_of(counts), 8, 10**9, 2 * 178_000**2).tolist() == [0, 2, 4, 6]


def test_an_event_above_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="event 1 has more than 10 particles"):
        microbatch_bounds(offsets_of([1, 11, 1]), 8, 10)
    with pytest.raises(ValueError, match="event 1 has more than 24 squared particles"):
        microbatch_bounds(offsets_of([1, 5, 1]), 8, 10, 24)


def random(seed: int = 1) -> np.random.Generator:
    return generator(Stream.BUCKETS, seed, 0, 0)


def pulses(number: int, seed: int = 1) -> Int64:
    """Counts with the spread of neutrino events: median about 60, a tail to thousands."""
    drawn = np.random.default_rng(seed).lognormal(4.1, 0.9, number)
    return np.clip(drawn, 5, 10_000).astype(np.int64)


@given(st.lists(st.integers(0, 9), max_size=80), st.integers(1, 9), st.integers(1, 7), st.integers(0, 9))
def test_every_event_is_there_once_and_each_batch_is_a_part_of_a_sorted_window(
    lengths: list[int], batch_events: int, num_batches: int, seed: int
) -> None:
    counts = np.array(lengths, np.int64)
    order = bucketed(counts, batch_events, num_batches, random(seed))
    assert sorted(order.tolist()) == list(range(len(counts)))
    assert bucketed(counts, batch_events, num_batches, random(seed)).tolist() == order.tolist()
    num_whole = len(counts) // batch_events
    assert order[num_whole * batch_events :].tolist() == list(range(num_whole * batch_events, len(counts)))
    found = Counter(tuple(order[i * batch_events : (i + 1) * batch_events].tolist()) for i in range(num_whole))
    expected: Counter[tuple[int, ...]] = Counter()
    size = num_batches * batch_events
    for first in range(0, num_whole * batch_events, size):
        window = list(range(first, min(first + size, num_whole * batch_events)))
        window.sort(key=lambda event: lengths[event])
        expected.update(tuple(window[i : i + batch_events]) for i in range(0, len(window), batch_events))
    assert found == expected


def test_the_batches_are_permuted_and_not_in_the_order_of_length() -> None:
    counts = pulses(64 * 100)
    means = counts[bucketed(counts, 64, 100, random())].reshape(100, 64).mean(1)
    assert abs(np.corrcoef(np.arange(100), means)[0, 1]) < 0.3
    assert not np.array_equal(bucketed(counts, 64, 100, random(2)), bucketed(counts, 64, 100, random(3)))


def test_a_unit_is_decoded_in_buckets_the_same_each_time(tmp_path) -> None:  # type: ignore[no-untyped-def]
    counts = (pulses(500) % 90).tolist()
    path = write_events(tmp_path / "f.parquet", make_events(counts), row_group_rows=100)
    settings = {"batch_events": 20, "max_particles": 2000, "max_particles_per_event": 80, "slot_mib": 1.0}
    orders = []
    for length_buckets in (0, 5, 5):
        stream = StreamConfig.model_validate({**settings, "length_buckets": length_buckets})
        (unit,) = decoded(planned([path], MUONS, stream), MUONS, stream, tmp_path)
        orders.append(unit.arrays.event_columns["source_row"][:, 0].tolist())
        found = np.diff(unit.arrays.offsets)
        assert found.tolist() == [counts[row] for row in orders[-1]]
        whole = found[: len(found) // 20 * 20].reshape(-1, 20)
        assert (whole == np.sort(whole)).all() == (length_buckets > 0)
    plain, first, second = orders
    assert first == second != plain
    assert sorted(first) == sorted(plain) == [row for row, count in enumerate(counts) if count <= 80]
