"""Bins of primaries: which event is in which, which are left out, and what only they can see."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64
from workloads.muons.metrics.conditional import (
    ConditionalCounts,
    ConditionBins,
    conditional_distances,
    plain_distance,
)
from workloads.muons.metrics.sample import Sample

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


def test_what_cancels_in_the_marginal_distribution_is_seen_in_the_bins() -> None:
    primary_E4 = primaries(4_000)
    heavy = primary_E4[:, 2] > 10
    log10_energy_E = np.where(heavy, 1.0, 2.0)
    # As many of each mass: energies given to the other mass leave the marginal distribution as it is.
    order = np.argsort(heavy, kind="stable")
    size = min(heavy.sum(), (~heavy).sum())
    kept = np.concatenate([order[:size], order[-size:]])
    real = one_muon_events(primary_E4[kept], log10_energy_E[kept])
    swapped = one_muon_events(primary_E4[kept], 3.0 - log10_energy_E[kept])
    marginal = plain_distance(real, swapped, "log10_energy")
    assert marginal is not None
    assert marginal(np.ones((1, len(real))), np.ones((1, len(real))))[0] == pytest.approx(0.0)
    assert value(real, swapped, "conditional_log10_energy_w1") == pytest.approx(1.0)
    assert value(real, swapped, "conditional_zenith_log10_energy_w1") < 0.1


def test_bins_with_fewer_than_a_hundred_events_are_left_out() -> None:
    primary_E4 = primaries(1_000)
    primary_E4[:, 2] = np.where(np.arange(1_000) < 950, 1.0, 56.0)
    few = primary_E4[:, 2] == 56.0
    real = one_muon_events(primary_E4, np.zeros(1_000))
    other = one_muon_events(primary_E4, np.where(few, 5.0, 0.1))
    assert value(real, other, "conditional_log10_energy_w1") == pytest.approx(0.1)


def test_without_a_bin_there_is_no_distance() -> None:
    small = one_muon_events(primaries(150), np.zeros(150))
    assert conditional_distances(small, small, ConditionBins(small.primary_E4)) == {}


def test_one_depth_only_is_one_bin() -> None:
    primary_E4 = primaries(300)
    primary_E4[:, 3] = 1_500.0
    real = one_muon_events(primary_E4, np.zeros(300))
    other = one_muon_events(primary_E4, np.ones(300))
    assert value(real, other, "conditional_depth_log10_energy_w1") == pytest.approx(1.0)


def events_of(primary_E4: Float64, counts_E: Int64) -> Sample:
    num = counts_E.sum()
    return Sample(
        primary_E4, np.arange(len(counts_E)), BundleArrays(counts_E, np.ones(num), np.ones(num), np.zeros(num))
    )


def deviations(real: Sample, generated: Sample, weights: Float64 | None = None) -> dict[str, float]:
    rows = np.ones((1, len(real))) if weights is None else weights[None]
    found = ConditionalCounts(real, generated, ConditionBins(real.primary_E4))(rows, rows)
    return {name: float(values[0]) for name, values in found.items()}


def test_deviations_of_mean_counts_are_weighted_with_the_real_muons_of_the_bins() -> None:
    primary_E4 = primaries(2_400)
    steep = primary_E4[:, 1] < np.quantile(primary_E4[:, 1], 1 / 3)
    real = events_of(primary_E4, np.where(steep, 10, 5))
    other = events_of(primary_E4, np.where(steep, 9, 6))
    # Half of the muons 10 % low, half of them 20 % high.
    found = deviations(real, other)
    assert found["conditional_zenith_count_mean_deviation"] == pytest.approx(np.sqrt((0.1**2 + 0.2**2) / 2), rel=0.01)
    assert found.keys() == {f"{name}_count_mean_deviation" for name in ConditionBins(primary_E4).of(primary_E4)}
    flat = deviations(events_of(primary_E4, np.full(2_400, 50)), events_of(primary_E4, np.full(2_400, 51)))
    assert list(flat.values()) == pytest.approx([0.02] * 3)


def test_opposite_errors_in_two_masses_leave_the_mean_count_and_are_seen_in_the_bins() -> None:
    primary_E4 = primaries(2_400)
    heavy = primary_E4[:, 2] > 10
    found = deviations(events_of(primary_E4, np.full(2_400, 10)), events_of(primary_E4, np.where(heavy, 11, 9)))
    assert found["conditional_count_mean_deviation"] == pytest.approx(0.1)
    assert found["conditional_zenith_count_mean_deviation"] < 0.02


def test_bins_without_events_of_any_weight_have_no_deviation() -> None:
    primary_E4 = primaries(2_400)
    same = events_of(primary_E4, np.full(2_400, 10))
    light = (primary_E4[:, 2] == 1.0).astype(np.float64)
    assert np.isnan(deviations(same, same, light)["conditional_count_mean_deviation"])
    assert deviations(same, same, light)["conditional_zenith_count_mean_deviation"] == 0.0
    few = events_of(primaries(60), np.full(60, 10))
    assert deviations(few, few) == {}
