"""W1 against distributions that are known, against scipy, in bins of primaries, and of pairs of muons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from workloads.muons.metrics.bundles import BundleArrays, Float64, Sample
from workloads.muons.metrics.distances import (
    MAX_PAIRS,
    BinnedWasserstein,
    ConditionBins,
    Values,
    conditional_distances,
    pair_distances,
)


def one_bin(values: Float64) -> Values:
    """Every value is an event's only one."""
    return Values(values, np.arange(len(values)), np.zeros(len(values), np.int64))


def w1(a: Float64, b: Float64, weights_a: Float64 | None = None, weights_b: Float64 | None = None) -> float:
    rows = [np.ones(len(one)) if given is None else given for one, given in ((a, weights_a), (b, weights_b))]
    return float(BinnedWasserstein(one_bin(a), one_bin(b))(rows[0][None], rows[1][None])[0])


def test_weighted_samples_have_scipys_distance() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=300), rng.normal(0.2, 1.5, size=500)
    weights_a, weights_b = rng.random(300), rng.random(500)
    assert w1(a, b, weights_a, weights_b) == pytest.approx(wasserstein_distance(a, b, weights_a, weights_b))
    assert w1(a, b) == pytest.approx(wasserstein_distance(a, b))


def test_bins_are_compared_each_for_itself_and_left_out_events_nowhere() -> None:
    rng = np.random.default_rng(3)
    sides, expected = [], []
    for shift in (0.0, 0.4):
        event = rng.integers(0, 90, 600)
        bin_E = np.arange(90) % 4 - 1
        sides.append((rng.normal(shift, 1, 600), event, bin_E))
    weights = [rng.random(90), rng.random(90)]
    for number in range(3):
        chosen = [bin_E[event] == number for _, event, bin_E in sides]
        (a, event_a, _), (b, event_b, _) = sides
        expected.append(
            wasserstein_distance(
                a[chosen[0]], b[chosen[1]], weights[0][event_a[chosen[0]]], weights[1][event_b[chosen[1]]]
            )
        )
    found = BinnedWasserstein(*(Values(*side) for side in sides), num_bins=3)(weights[0][None], weights[1][None])
    assert found[0] == pytest.approx(np.mean(expected))


def test_a_bin_without_weight_has_no_distance() -> None:
    side = Values(np.array([1.0, 2.0]), np.array([0, 1]), np.array([0, 1]))
    found = BinnedWasserstein(side, side, 2)(np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones((2, 2)))
    assert math.isnan(found[0])
    assert found[1] == 0.0


MASSES = (1.0, 56.0)


def primaries(num: int, seed: int = 0) -> Float64:
    rng = np.random.default_rng(seed)
    return np.stack(
        [10 ** rng.uniform(5, 8, num), rng.uniform(0, 1.2, num), rng.choice(MASSES, num), rng.uniform(1e3, 2e3, num)], 1
    )


def one_muon_events(primary_E4: Float64, log10_energy_E: Float64) -> Sample:
    num = len(primary_E4)
    bundles = BundleArrays(np.ones(num, np.int64), 10**log10_energy_E, np.ones(num), np.zeros(num))
    return Sample(primary_E4, np.arange(num), bundles)


def value(sample: Sample, other: Sample, name: str) -> float:
    distance = conditional_distances(sample, other, ConditionBins(sample.primary_E4))[name]
    return float(distance(np.ones((1, len(sample))), np.ones((1, len(other))))[0])


def test_bins_are_quartiles_of_energy_for_each_mass_and_terciles_of_zenith_and_depth() -> None:
    primary_E4 = primaries(2_400)
    found = ConditionBins(primary_E4).of(primary_E4)
    assert found.keys() == {"conditional", "conditional_zenith", "conditional_depth"}
    assert len(np.unique(found["conditional"])) == 8
    for number in range(8):
        inside = primary_E4[found["conditional"] == number]
        assert len(np.unique(inside[:, 2])) == 1
        assert np.ptp(np.searchsorted(np.quantile(primary_E4[:, 0], [0.25, 0.5, 0.75]), inside[:, 0])) == 0
    for name, column in (("conditional_zenith", 1), ("conditional_depth", 3)):
        assert np.bincount(found[name]).tolist() == [800, 800, 800]
        assert primary_E4[found[name] == 0, column].max() < primary_E4[found[name] == 1, column].min()


def test_a_shift_in_one_zenith_bin_is_a_third_of_it_in_the_mean() -> None:
    primary_E4 = primaries(2_400)
    steep = primary_E4[:, 1] < np.quantile(primary_E4[:, 1], 1 / 3)
    real = one_muon_events(primary_E4, np.zeros(2_400))
    other = one_muon_events(primary_E4, np.where(steep, 0.6, 0.0))
    assert value(real, other, "conditional_zenith_log10_energy_w1") == pytest.approx(0.2, rel=0.01)


def test_bins_with_fewer_than_a_hundred_events_are_left_out() -> None:
    primary_E4 = primaries(1_000)
    primary_E4[:, 2] = np.where(np.arange(1_000) < 950, 1.0, 56.0)
    few = primary_E4[:, 2] == 56.0
    real = one_muon_events(primary_E4, np.zeros(1_000))
    other = one_muon_events(primary_E4, np.where(few, 5.0, 0.1))
    assert value(real, other, "conditional_log10_energy_w1") == pytest.approx(0.1)


def bundles_at(counts: list[int], x_m: list[float]) -> BundleArrays:
    return BundleArrays(np.array(counts), np.ones(len(x_m)), np.array(x_m), np.zeros(len(x_m)))


def test_an_event_of_two_muons_has_their_distance_and_smaller_events_none() -> None:
    muons = np.array([[1.0, 0.0, 0.0], [1.0, 3.0, 4.0], [1.0, 9.0, 9.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0]])
    distance, event = pair_distances(BundleArrays.of(np.array([2, 0, 1, 2]), muons), np.random.default_rng(0))
    assert distance == pytest.approx([5.0, 2.0])
    assert event.tolist() == [0, 3]


def test_a_large_event_has_fifty_pairs_of_two_different_muons() -> None:
    powers = [float(2**number) for number in range(40)]  # every pair has a distance of its own
    distance, event = pair_distances(bundles_at([40, 40], powers * 2), np.random.default_rng(0))
    assert len(distance) == 2 * MAX_PAIRS
    possible = {abs(one - other) for one in powers for other in powers if one != other}
    assert set(distance.tolist()) <= possible
    assert event.tolist() == [0] * MAX_PAIRS + [1] * MAX_PAIRS


def test_the_largest_events_have_pairs_too() -> None:
    counts = [150_000, 2]
    bundles = BundleArrays(np.array(counts), np.ones(150_002), np.zeros(150_002), np.zeros(150_002))
    distance, event = pair_distances(bundles, np.random.default_rng(2))
    assert distance.tolist() == [0.0] * (MAX_PAIRS + 1)
    assert np.bincount(event).tolist() == [MAX_PAIRS, 1]
