"""Distances of muon pairs."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.muons.metrics.bundles import BundleArrays
from workloads.muons.metrics.decoherence import MAX_PAIRS, pair_distances


def bundles_at(counts: list[int], x_m: list[float]) -> BundleArrays:
    return BundleArrays(np.array(counts), np.ones(len(x_m)), np.array(x_m), np.zeros(len(x_m)))


def test_an_event_of_two_muons_has_their_distance_and_smaller_events_none() -> None:
    muons = np.array([[1.0, 0.0, 0.0], [1.0, 3.0, 4.0], [1.0, 9.0, 9.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0]])
    distance, event = pair_distances(BundleArrays.of(np.array([2, 0, 1, 2]), muons), np.random.default_rng(0))
    assert distance == pytest.approx([5.0, 2.0])
    assert event.tolist() == [0, 3]


def test_all_pairs_of_a_small_event_are_there_once() -> None:
    x_m = [0.0, 1.0, 10.0, 100.0]
    distance, event = pair_distances(bundles_at([4], x_m), np.random.default_rng(0))
    assert sorted(distance) == pytest.approx([1, 9, 10, 90, 99, 100])
    assert event.tolist() == [0] * 6


def test_a_large_event_has_fifty_pairs_of_two_different_muons() -> None:
    powers = [float(2**number) for number in range(40)]  # every pair has a distance of its own
    distance, event = pair_distances(bundles_at([40, 40], powers * 2), np.random.default_rng(0))
    assert len(distance) == 2 * MAX_PAIRS
    possible = {abs(one - other) for one in powers for other in powers if one != other}
    assert set(distance.tolist()) <= possible
    assert event.tolist() == [0] * MAX_PAIRS + [1] * MAX_PAIRS


def test_drawn_pairs_are_drawn_evenly() -> None:
    number = 12
    x_m = [float(2**k) for k in range(number)] * 3_000
    distance, _ = pair_distances(bundles_at([number] * 3_000, x_m), np.random.default_rng(1))
    values, times = np.unique(distance, return_counts=True)
    assert len(values) == number * (number - 1) // 2
    expected = len(distance) / len(values)
    assert np.abs(times - expected).max() < 5 * np.sqrt(expected)


def test_the_largest_events_have_pairs_too() -> None:
    counts = [150_000, 2]
    bundles = BundleArrays(np.array(counts), np.ones(150_002), np.zeros(150_002), np.zeros(150_002))
    distance, event = pair_distances(bundles, np.random.default_rng(2))
    assert distance.tolist() == [0.0] * (MAX_PAIRS + 1)
    assert np.bincount(event).tolist() == [MAX_PAIRS, 1]
