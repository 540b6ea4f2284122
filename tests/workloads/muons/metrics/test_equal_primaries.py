"""Metrics of fluctuations at one primary: each sees a generator that is wrong in just that, and not a right one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from workloads.base.report.metric import bootstrap_error
from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64, Sample, WeightSets
from workloads.muons.metrics.distances import CountScale, EqualPrimaries, UniformityKS, conditions

SHOWERS = 2_500
PRIMARIES = np.random.default_rng(0)
PRIMARY_E4 = np.column_stack(
    [
        np.repeat(10 ** PRIMARIES.uniform(5, 7, SHOWERS), 2),
        np.repeat(PRIMARIES.uniform(0, 0.8, SHOWERS), 2),
        np.repeat(PRIMARIES.choice([1.0, 56.0], SHOWERS), 2),
        np.tile([1500.0, 2000.0], SHOWERS),
    ]
)
"""Protons and iron, each shower at two depths."""


def expected() -> Float64:
    energy_E, zenith_E, mass_E, depth_E = PRIMARY_E4.T
    return 30 * (energy_E / 1e6) ** 0.8 * mass_E**0.2 * np.exp(1.5 - depth_E / np.cos(zenith_E) / 1000)


def showers(seed: int, **wrong: Any) -> Sample:
    """Counts that rows of a shower share, muons that share a radius, which goes with the count; and what is wrong."""
    rng, num = np.random.default_rng(seed), len(PRIMARY_E4)
    width = wrong.get("width", 0.5)
    of_rows = rng.gamma(width**-2, width**2, num) if "symmetric" not in wrong else 1 + rng.choice([-width, width], num)
    factor_E = of_rows if "rows_differ" in wrong else np.repeat(of_rows[::2], 2)
    counts_E = rng.poisson(expected() * factor_E * np.where(PRIMARY_E4[:, 2] > 1, wrong.get("iron", 1.0), 1.0))
    radius_E = 1.5 - wrong.get("slope", 0.1) * np.log10(PRIMARY_E4[:, 0] / 1e6)
    radius_E += wrong.get("same_radius", 0.1) * rng.normal(size=num)
    radius_E += wrong.get("with_count", 0.05) * (factor_E - 1) / width
    log10_radius_P = np.repeat(radius_E, counts_E) + 0.4 * rng.normal(size=counts_E.sum())
    log10_energy_P = rng.normal(2, 0.5, counts_E.sum())
    log10_energy_P += np.repeat(wrong.get("same_energy", 0.0) * rng.normal(size=num), counts_E)
    x_m_P = 10**log10_radius_P - RADIUS_OFFSET_M
    bundles = BundleArrays(counts_E, 10**log10_energy_P, x_m_P, np.zeros(len(x_m_P)))
    return Sample(PRIMARY_E4, np.repeat(np.arange(SHOWERS), 2), bundles)


@cache
def real() -> tuple[Sample, CountScale]:
    sample = showers(1)
    return sample, CountScale(sample)


def off(generated: Sample) -> dict[str, float]:
    """How far each metric is from the best value, in its errors."""
    sample, scale = real()
    weights = WeightSets(sample.weights_E, sample.shower_E, 30, 0)
    compare = EqualPrimaries(sample, generated, scale)
    values: dict[str, list[Float64]] = {}
    for weights_BE in weights:
        for name, value_B in compare(weights_BE, weights_BE).items():
            values.setdefault(name, []).append(value_B)
    joined = {name: np.concatenate(parts) for name, parts in values.items()}
    return {name: abs(of[0] - name.endswith("_ratio")) / bootstrap_error(of[1:]) for name, of in joined.items()}


@pytest.mark.parametrize(
    ("wrong", "seen_by"),
    [
        ({}, set()),
        # A mean that is wrong at some primaries is seen by other metrics: it is no correlation at one primary.
        ({"slope": 0.4}, set()),
        ({"iron": 1.2}, {"count_mean_by_mass_deviation"}),
        # A larger part of the width is the shower's, and no longer Poisson's of each row.
        ({"width": 0.7}, {"count_fano_by_primary_ratio", "count_depth_correlation_difference"}),
        ({"symmetric": True}, {"count_skewness_by_primary_ratio"}),
        ({"rows_differ": True}, {"count_depth_correlation_difference"}),
        ({"same_radius": 0.0}, {"radius_intraclass_by_mass_ratio", "count_radius_correlation_difference"}),
        ({"with_count": 0.0, "same_radius": 0.112}, {"count_radius_correlation_difference"}),
        ({"same_energy": 0.1}, {"energy_intraclass_by_mass_difference"}),
    ],
    ids=str,
)
def test_a_generator_is_caught_by_the_metric_of_what_is_wrong_and_by_no_other(
    wrong: dict[str, Any], seen_by: set[str]
) -> None:
    found = off(showers(2, **wrong))
    assert {name for name, sigmas in found.items() if sigmas > 5} == seen_by, found


def test_the_expected_count_of_a_primary_is_known_from_the_real_events() -> None:
    sample, scale = real()
    mean_E, deviation_E, bin_E = scale.of(sample.primary_E4, conditions(sample.primary_E4))
    ratio_E = (mean_E / expected())[bin_E >= 0]
    assert len(ratio_E) > 3_000
    assert np.std(ratio_E) < 0.05
    variance_E = expected() + 0.25 * expected() ** 2
    assert np.mean((deviation_E**2 / variance_E)[bin_E >= 0]) == pytest.approx(1.0, abs=0.05)


def test_correlations_of_pairs_by_hand() -> None:
    """At one primary a deviation is the difference from the mean; each event counts with its muons."""
    rng = np.random.default_rng(3)
    counts_E = rng.integers(0, 15, 300)
    log10_energy_P, log10_radius_P = rng.normal(size=(2, counts_E.sum())) + np.repeat(rng.normal(size=300), counts_E)
    x_m_P = 10**log10_radius_P
    bundles = BundleArrays(counts_E, 10**log10_energy_P, x_m_P - RADIUS_OFFSET_M, np.zeros(len(x_m_P)))
    sample = Sample(np.tile(PRIMARY_E4[:1], (300, 1)), np.arange(300), bundles)
    single = sample.with_bundles(replace(bundles, energy_gev_P=10 ** rng.normal(size=len(x_m_P))))
    ones = np.ones((1, 300))
    found = EqualPrimaries(single, sample, CountScale(sample))(ones, ones)["energy_intraclass_by_mass_difference"]

    def by_hand(of: Sample) -> float:
        deviation_P = of.bundles.features["log10_energy"].values
        deviation_P = deviation_P - deviation_P.mean()
        events = [part for part in np.split(deviation_P, np.cumsum(counts_E)[:-1]) if len(part) > 1]
        mean = np.concatenate(events).mean()
        pairs = [(part.sum() ** 2 - (part**2).sum()) / (len(part) - 1) for part in events]
        muons = sum(map(len, events))
        variance = sum((part**2).sum() for part in events) / muons - mean**2
        return float((sum(pairs) / muons - mean**2) / variance)

    assert found[0] == pytest.approx(by_hand(sample) - by_hand(single), abs=1e-6)
    assert by_hand(sample) == pytest.approx(0.5, abs=0.1)


def test_rows_with_the_ids_of_another_shower_are_not_of_it() -> None:
    sample, scale = real()
    other = replace(sample, shower_E=sample.shower_E // 10)
    ones = np.ones((1, len(sample)))
    found = EqualPrimaries(sample, other, scale)(ones, ones)
    assert found["count_depth_correlation_difference"][0] == pytest.approx(0.0, abs=1e-12)


def test_few_events_have_no_fluctuations() -> None:
    sample = real()[0].only(np.arange(len(PRIMARY_E4)) < 20)
    ones = np.ones((1, 20))
    found = EqualPrimaries(sample, sample, CountScale(sample))(ones, ones)
    assert np.isnan([values[0] for values in found.values()]).all()


def test_the_calibration_is_tested_in_each_bin() -> None:
    """Too low in one bin, too high in the other: together they are uniform."""
    u = np.random.default_rng(1).random(2_000)
    bin_E = (u > 0.5).astype(np.int64)
    assert UniformityKS(u, bin_E)(np.ones((1, 2_000)))[0] == pytest.approx(0.5, abs=0.01)
    right = UniformityKS(u, np.arange(2_000) % 2)
    null = right.null(np.ones(2_000), np.random.default_rng(2).poisson(1.0, (50, 2_000)).astype(np.float64))
    assert right(np.ones((1, 2_000)))[0] < null.mean() + 3 * null.std()
    few = np.where(np.arange(2_000) < 50, 1, 0)
    alone = UniformityKS(u[50:])(np.ones((1, 1_950)))
    assert UniformityKS(u, few)(np.ones((1, 2_000))) == pytest.approx(alone)
