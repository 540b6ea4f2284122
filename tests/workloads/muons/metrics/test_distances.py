"""W1 against distributions that are known, against scipy, in bins of primaries, and of pairs of muons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, wasserstein_distance
from simulated import repeated

from workloads.base.report.metric import Floor
from workloads.muons.metrics import distances
from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64, Sample, resampled
from workloads.muons.metrics.distances import CountMetrics, IntraEvent, TailMetrics, UniformityKS
from workloads.muons.metrics.evaluate import Measure, null_floor


def one_bin(values: Float64) -> distances.Values:
    """Every value is an event's only one."""
    return distances.Values(values, np.arange(len(values)), np.zeros(len(values), np.int64))


def w1(a: Float64, b: Float64, weights_a: Float64 | None = None, weights_b: Float64 | None = None) -> float:
    rows = [np.ones(len(one)) if given is None else given for one, given in ((a, weights_a), (b, weights_b))]
    return float(distances.BinnedWasserstein(one_bin(a), one_bin(b))(rows[0][None], rows[1][None])[0])


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
    found = distances.BinnedWasserstein(*(distances.Values(*side) for side in sides), num_bins=3)(
        weights[0][None], weights[1][None]
    )
    assert found[0] == pytest.approx(np.mean(expected))


def test_a_bin_without_weight_has_no_distance() -> None:
    side = distances.Values(np.array([1.0, 2.0]), np.array([0, 1]), np.array([0, 1]))
    found = distances.BinnedWasserstein(side, side, 2)(np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones((2, 2)))
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
    distance = distances.conditional_distances(sample, other, distances.ConditionBins(sample.primary_E4))[name]
    return float(distance(np.ones((1, len(sample))), np.ones((1, len(other))))[0])


def test_bins_are_quartiles_of_energy_for_each_mass_and_terciles_of_zenith_and_depth() -> None:
    primary_E4 = primaries(2_400)
    found = distances.ConditionBins(primary_E4).of(primary_E4)
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
    distance, event = distances.pair_distances(BundleArrays.of(np.array([2, 0, 1, 2]), muons), np.random.default_rng(0))
    assert distance == pytest.approx([5.0, 2.0])
    assert event.tolist() == [0, 3]


def test_a_large_event_has_fifty_pairs_of_two_different_muons() -> None:
    powers = [float(2**number) for number in range(40)]  # every pair has a distance of its own
    distance, event = distances.pair_distances(bundles_at([40, 40], powers * 2), np.random.default_rng(0))
    assert len(distance) == 2 * distances.MAX_PAIRS
    possible = {abs(one - other) for one in powers for other in powers if one != other}
    assert set(distance.tolist()) <= possible
    assert event.tolist() == [0] * distances.MAX_PAIRS + [1] * distances.MAX_PAIRS


def test_the_largest_events_have_pairs_too() -> None:
    counts = [150_000, 2]
    bundles = BundleArrays(np.array(counts), np.ones(150_002), np.zeros(150_002), np.zeros(150_002))
    distance, event = distances.pair_distances(bundles, np.random.default_rng(2))
    assert distance.tolist() == [0.0] * (distances.MAX_PAIRS + 1)
    assert np.bincount(event).tolist() == [distances.MAX_PAIRS, 1]


COUNTS = np.array([0, 0, 1, 3])
GENERATED_COUNTS = np.array([0, 1, 1, 2, 12, 0, 2, 6])


def unweighted(kind: Callable[[Any, Any], Measure], a: Any, b: Any) -> dict[str, float]:
    found = kind(a, b)(np.ones((1, len(a))), np.ones((1, len(b))))
    return {name: float(values[0]) for name, values in found.items()}


count_metrics, tail_metrics, correlations = (
    partial(unweighted, kind) for kind in (CountMetrics, TailMetrics, IntraEvent)
)


def test_each_number_by_hand() -> None:
    found = count_metrics(COUNTS, GENERATED_COUNTS)
    # p = 1/2, 1/4, 0, 1/4 at 0, 1, 2, 3; q = 1/4, 1/4, 1/4, 1/8 (6), 1/8 (12).
    assert found["count_tv"] == pytest.approx((1 / 4 + 0 + 1 / 4 + 1 / 4 + 1 / 8 + 1 / 8) / 2)
    assert found["count_empty_difference"] == pytest.approx(-1 / 4)
    assert found["count_mean_ratio"] == pytest.approx((24 / 8) / 1)
    variance_real, variance_generated = 10 / 4 - 1, (1 + 1 + 4 + 144 + 4 + 36) / 8 - 9
    assert found["count_fano_ratio"] == pytest.approx((variance_generated / 3) / (variance_real / 1))
    assert found["count_at_least_2_ratio"] == pytest.approx((4 / 8) / (1 / 4))
    assert math.isnan(found["count_at_least_4_ratio"])
    assert math.isnan(found["count_at_least_100_ratio"])


def test_the_distance_from_uniform_is_that_of_kolmogorov_and_smirnov() -> None:
    u = np.random.default_rng(2).random(500) ** 1.3
    assert UniformityKS(u)(np.ones((1, 500)))[0] == pytest.approx(kstest(u, "uniform").statistic)
    assert UniformityKS(np.array([0.5]))(np.ones((1, 1)))[0] == pytest.approx(0.5)


def pit_floor(u: np.ndarray, shower: np.ndarray) -> Floor:
    """Floor of the PIT by 200 bootstraps of these showers."""
    bootstraps = resampled(shower, 200, np.random.default_rng(6))
    return null_floor(UniformityKS(u).null(np.ones(len(u)), bootstraps))


def test_the_floor_of_the_pit_is_what_uniform_numbers_have() -> None:
    """Mean and standard deviation of Kolmogorov's distribution, whatever the model's own u."""
    rng = np.random.default_rng(4)
    drawn = [UniformityKS(rng.random(2_000))(np.ones((1, 2_000)))[0] for _ in range(200)]
    for u in (rng.random(2_000), rng.random(2_000) ** 2):
        floor = pit_floor(u, np.arange(2_000))
        assert floor.value == pytest.approx(np.mean(drawn), rel=0.08)
        assert floor.spread == pytest.approx(np.std(drawn), rel=0.25)
        assert floor.error == pytest.approx(floor.spread / np.sqrt(200))


BELOW = "energy_below_cut_share"
TEV = "energy_above_1_tev_ratio"
FAR = "radius_above_100_m_ratio"


def events_with(*energies_gev: Sequence[float], radius_m: float = 1.0) -> BundleArrays:
    """Events with these muons."""
    energy_gev_P = np.array([energy for event in energies_gev for energy in event])
    num = len(energy_gev_P)
    return BundleArrays(
        np.array([len(one) for one in energies_gev]), energy_gev_P, np.full(num, radius_m), np.zeros(num)
    )


def test_shares_of_muons_by_hand() -> None:
    real = events_with([2e3] * 10 + [20.0] * 10, [30.0] * 20)
    generated = events_with([19.0, 20.0], [2e3, 900.0])
    assert tail_metrics(real, generated) == pytest.approx({TEV: (1 / 4) / (10 / 40), BELOW: 1 / 4})
    assert tail_metrics(real, events_with([19.0], []))[TEV] == 0.0
    far = events_with([20.0] * 12, radius_m=101.0)
    assert tail_metrics(far, far) == {FAR: 1.0, BELOW: 0.0}


WITHIN = "energy_radius_correlation_within_events_difference"
VARIANCE = "mean_log10_radius_variance_ratio_at_least_20"


def bundles_of(counts_E: np.ndarray, log10_energy_P: Float64, log10_radius_P: Float64) -> BundleArrays:
    x_m_P = 10**log10_radius_P - RADIUS_OFFSET_M
    return BundleArrays(counts_E, 10**log10_energy_P, x_m_P, np.zeros(len(x_m_P)))


def correlated(num_events: int, slope: float, common: float, seed: int) -> BundleArrays:
    """Radii fall with the energy inside events; a common part of the energy of an event is no radius' business."""
    rng = np.random.default_rng(seed)
    counts_E = rng.integers(0, 30, num_events)
    inside_P = rng.normal(size=counts_E.sum())
    log10_radius_P = 1 + slope * inside_P + 0.1 * rng.normal(size=len(inside_P))
    return bundles_of(
        counts_E, 3 + inside_P + np.repeat(common * rng.normal(size=num_events), counts_E), log10_radius_P
    )


def test_the_correlation_inside_events_is_numpys_and_does_not_see_what_events_have_in_common() -> None:
    real, generated = correlated(4_000, -0.1, 0.0, 1), correlated(4_000, -0.02, 2.0, 2)
    expected = []
    for one in (real, generated):
        values = [one.features[name].values for name in ("log10_energy", "log10_radius")]
        means = [np.bincount(one.event_P, of, len(one)) / np.maximum(one.counts_E, 1) for of in values]
        expected.append(np.corrcoef(*(of - mean[one.event_P] for of, mean in zip(values, means, strict=True)))[0, 1])
    assert correlations(real, generated)[WITHIN] == pytest.approx(expected[1] - expected[0])
    same = correlated(4_000, -0.1, 2.0, 2)
    assert correlations(real, same)[WITHIN] == pytest.approx(0.0, abs=0.01)


def test_the_variance_of_mean_radii_is_that_of_large_events_only() -> None:
    # Events of 20 muons at log10 r = 0 and 1, and some of 19 far out.
    counts_E = np.tile([20, 20, 19], 10)
    log10_energy_P = np.linspace(1, 2, counts_E.sum())
    real = bundles_of(counts_E, log10_energy_P, np.repeat(np.tile([0.0, 1.0, 5.0], 10), counts_E))
    nearer = bundles_of(counts_E, log10_energy_P, np.repeat(np.tile([0.5, 1.0, -0.5], 10), counts_E))
    assert correlations(real, nearer)[VARIANCE] == pytest.approx(0.25)
    assert correlations(real, nearer)["mean_log10_radius_variance_ratio_at_least_5"] < 0.25


@pytest.mark.parametrize(
    "metrics",
    [lambda a, b: CountMetrics(a.counts_E, b.counts_E), TailMetrics, IntraEvent],
    ids=["counts", "tails", "correlations"],
)
def test_integer_weights_are_repetitions(metrics: Callable[[BundleArrays, BundleArrays], Measure]) -> None:
    real, generated = correlated(60, -0.1, 0.3, 1), correlated(60, -0.1, 0.3, 2)
    times = np.random.default_rng(3).integers(1, 4, 60)  # none is left out: the lowest energy stays the cut
    rows = np.ones((1, 60))
    many = repeated(real, np.repeat(np.arange(60), times))
    expected = metrics(many, generated)(np.ones((1, len(many))), rows)
    weighted = metrics(real, generated)(times[None].astype(np.float64), rows)
    for name, value_B in expected.items():
        assert weighted[name] == pytest.approx(value_B, nan_ok=True), name
