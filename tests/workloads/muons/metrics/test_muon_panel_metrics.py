"""The panel: each distance against a value that is known without it, and against generators with one thing wrong."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64, Int64, halves
from workloads.muons.metrics.panel import W1_FEATURES, comparison, count_tv, distances, floor, panel, score


def on_x_axis(counts_E: Int64, energy_gev_P: Float64, radius_m_P: Float64) -> BundleArrays:
    """Bundles whose muons have these radii."""
    return BundleArrays(counts_E, energy_gev_P, radius_m_P, np.zeros(len(radius_m_P)))


def make_bundles(num_events: int, seed: int) -> BundleArrays:
    """Counts and energies follow a primary that is the same for every seed; radii fall with the energy."""
    lg_primary_E = np.random.default_rng(0).uniform(0, 1, num_events)
    rng = np.random.default_rng([1, seed])
    counts_E = rng.poisson(10**lg_primary_E * rng.gamma(6.0, 1 / 6, num_events))
    lg_energy_P = 2 + np.repeat(lg_primary_E, counts_E) + 0.3 * rng.normal(size=counts_E.sum())
    radius_P = 10 ** (3 - 0.8 * lg_energy_P + 0.1 * rng.normal(size=len(lg_energy_P)))
    return on_x_axis(counts_E, 10**lg_energy_P, radius_P)


REAL = make_bundles(4_000, 1)
SPLITS = halves(np.arange(4_000), 4)
FLOOR = floor(REAL, SPLITS)


def test_total_variation_of_counts_is_half_the_sum_of_differences() -> None:
    assert count_tv(np.array([0, 0, 1, 3]), np.array([0, 1, 1, 1])) == pytest.approx((0.25 + 0.5 + 0.25) / 2)


def test_features_of_a_bundle_by_hand() -> None:
    bundles = BundleArrays.of(np.array([2, 0, 1]), np.array([[10.0, 3.0, 4.0], [90.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    features = {name: feature.values for name, feature in bundles.features.items()}
    owners = {name: feature.events.tolist() for name, feature in bundles.features.items()}
    assert (owners["log10_count"], owners["x_m"], owners["mean_radius_m"]) == ([0, 1, 2], [0, 0, 2], [0, 2])
    assert features["log10_count"] == pytest.approx(np.log10([3, 1, 2]))
    assert features["x_m"].tolist() == [3, 0, 0]
    assert features["mean_radius_m"] == pytest.approx([3.0, 0.0])
    assert features["log10_energy"] == pytest.approx([1.0, math.log10(90), 0.0])
    assert features["radius_m"] == pytest.approx([5.0, 1.0, 0.0])
    assert features["log10_radius"] == pytest.approx(
        np.log10([5 + RADIUS_OFFSET_M, 1 + RADIUS_OFFSET_M, RADIUS_OFFSET_M])
    )
    assert features["log10_bundle_energy"] == pytest.approx([2.0, 0.0])
    assert features["log10_leading_energy"] == pytest.approx([math.log10(90), 0.0])
    assert features["weighted_radius_m"] == pytest.approx([(10 * 5 + 90 * 1) / 100, 0.0])


def test_muons_that_are_not_finite_are_counted_and_leave_their_event() -> None:
    bundles = on_x_axis(
        np.array([2, 1, 2]), np.array([1.0, np.nan, 3.0, np.inf, 5.0]), np.array([1.0, 1, 1, 1, np.nan])
    )
    finite, num_bad = bundles.finite()
    assert num_bad == 3
    assert finite.counts_E.tolist() == [1, 1, 0]
    assert finite.energy_gev_P.tolist() == [1, 3]
    assert REAL.finite() == (REAL, 0)


def test_bundles_without_muons_have_no_distance_but_that_of_the_counts() -> None:
    none = on_x_axis(np.zeros(5, np.int64), np.zeros(0), np.zeros(0))
    assert distances(none, REAL) == {"count_tv": pytest.approx(1 - (REAL.counts_E == 0).mean())}
    assert distances(none.only(np.zeros(5, np.bool_)), REAL) == {}


def test_a_shower_is_never_split() -> None:
    showers = np.repeat(np.arange(50), 4)
    for first in halves(showers, 5):
        assert first.sum() == 100
        assert np.array_equal(first.reshape(50, 4).any(1), first.reshape(50, 4).all(1))
    assert not np.array_equal(*halves(showers, 2))
    assert np.array_equal(halves(showers, 2)[1], halves(showers, 2)[1])


def test_a_perfect_generator_has_the_numbers_of_the_floor() -> None:
    found = panel(REAL, make_bundles(4_000, 2), SPLITS)
    assert found.keys() == FLOOR.keys() == {"count_tv", *(f"{name}_w1" for name in W1_FEATURES)}
    for name, value in found.items():
        assert 0.3 < value / FLOOR[name] < 3, name
    assert score(found, FLOOR) == pytest.approx(1.0, abs=0.5)
    assert math.isnan(score({}, {}))


def test_energies_shuffled_between_events_raise_the_distances_of_bundles_alone() -> None:
    good = make_bundles(4_000, 2)
    shuffled = np.random.default_rng(5).permutation(good.energy_gev_P)
    found = panel(REAL, on_x_axis(good.counts_E, shuffled, good.radius_m_P), SPLITS)
    for name in ("log10_bundle_energy_w1", "log10_leading_energy_w1"):
        assert found[name] > 2.5 * FLOOR[name], name
    for name in ("count_tv", "log10_energy_w1", "log10_radius_w1", "radius_m_w1"):
        assert found[name] < 2 * FLOOR[name], name
    assert score(found, FLOOR) == pytest.approx(np.mean([value / FLOOR[name] for name, value in found.items()]))
    assert score(found, FLOOR) > 1.3


EDGES = np.linspace(0.0, 3.0, 31)
SOME = np.arange(30)
NONE = np.zeros(30, np.int64)


@pytest.mark.parametrize(("real", "generated"), [(SOME, NONE), (NONE, NONE)])
def test_a_picture_is_drawn_even_if_a_side_is_empty(
    real: npt.NDArray[np.int64], generated: npt.NDArray[np.int64]
) -> None:
    pixels = comparison({"log10_energy": (EDGES, real, generated), "log10_count": (EDGES, real, generated)}, "title")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10, "colours"
