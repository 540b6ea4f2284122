"""What holds inside events, against values by hand and against numpy's correlation."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import repeated

from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64
from workloads.muons.metrics.intra_event import IntraEvent

CORRELATION = "energy_radius_correlation_difference"
WITHIN = "energy_radius_correlation_within_events_difference"
VARIANCE = "mean_log10_radius_variance_ratio_at_least_20"


def make(counts_E: np.ndarray, log10_energy_P: Float64, log10_radius_P: Float64) -> BundleArrays:
    x_m_P = 10**log10_radius_P - RADIUS_OFFSET_M
    return BundleArrays(counts_E, 10**log10_energy_P, x_m_P, np.zeros(len(x_m_P)))


def told(real: BundleArrays, generated: BundleArrays, weights: Float64 | None = None) -> dict[str, float]:
    rows = np.ones((1, len(real))) if weights is None else weights[None]
    found = IntraEvent(real, generated)(rows, np.ones((1, len(generated))))
    return {name: float(values[0]) for name, values in found.items()}


def correlated(num_events: int, slope: float, common: float, seed: int) -> BundleArrays:
    """Radii fall with the energy inside events; a common part of the energy of an event is no radius' business."""
    rng = np.random.default_rng(seed)
    counts_E = rng.integers(0, 30, num_events)
    inside_P = rng.normal(size=counts_E.sum())
    log10_radius_P = 1 + slope * inside_P + 0.1 * rng.normal(size=len(inside_P))
    return make(counts_E, 3 + inside_P + np.repeat(common * rng.normal(size=num_events), counts_E), log10_radius_P)


def test_the_correlation_over_all_muons_is_numpys() -> None:
    real, generated = correlated(200, -0.1, 0.0, 1), correlated(200, -0.02, 0.5, 2)
    both = [(one.features["log10_energy"], one.features["log10_radius"]) for one in (real, generated)]
    expected = [np.corrcoef(*features)[0, 1] for features in both]
    assert told(real, generated)[CORRELATION] == pytest.approx(expected[1] - expected[0])


def test_the_correlation_inside_events_does_not_see_what_events_have_in_common() -> None:
    real, generated = correlated(4_000, -0.1, 0.0, 1), correlated(4_000, -0.1, 2.0, 2)
    found = told(real, generated)
    assert found[WITHIN] == pytest.approx(0.0, abs=0.01)
    assert found[CORRELATION] > 0.3


def test_the_variance_of_mean_radii_is_that_of_large_events_only() -> None:
    # Events of 20 muons at log10 r = 0 and 1, and some of 19 far out.
    counts_E = np.tile([20, 20, 19], 10)
    log10_energy_P = np.linspace(1, 2, counts_E.sum())
    real = make(counts_E, log10_energy_P, np.repeat(np.tile([0.0, 1.0, 5.0], 10), counts_E))
    nearer = make(counts_E, log10_energy_P, np.repeat(np.tile([0.5, 1.0, -0.5], 10), counts_E))
    assert told(real, nearer)[VARIANCE] == pytest.approx(0.25)
    assert told(real, nearer)["mean_log10_radius_variance_ratio_at_least_5"] < 0.25


def test_few_large_events_have_no_variance() -> None:
    real, generated = correlated(200, -0.1, 0.0, 1), correlated(200, -0.1, 0.0, 2)
    found = told(real, generated)
    assert VARIANCE in found
    assert "mean_log10_radius_variance_ratio_at_least_100" not in found


def test_integer_weights_are_repetitions() -> None:
    real, generated = correlated(60, -0.1, 0.3, 1), correlated(60, -0.1, 0.3, 2)
    times = np.random.default_rng(3).integers(0, 4, 60)
    found = told(real, generated, times.astype(np.float64))
    assert found == pytest.approx(told(repeated(real, np.repeat(np.arange(60), times)), generated))


def test_without_large_events_or_muons_there_is_nothing_to_say() -> None:
    none = BundleArrays(np.zeros(3, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    assert np.isnan(list(told(none, none).values())).all()
