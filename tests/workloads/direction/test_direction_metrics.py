"""Angles, the von Mises-Fisher distribution and figures of predicted directions, against values that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad

from tests.workloads.direction.fake_predictor import calibrated_events, events_at
from workloads.base.report.metric import verdict
from workloads.base.report.page import MetricReport
from workloads.direction.grouping import unit_vectors
from workloads.direction.metrics import (
    DEFINITIONS,
    PredictedEvents,
    angles_rad,
    azimuth_zenith_rad,
    drawn_angles_rad,
    evaluate,
    kappa_bins,
    mean_angle_rad,
    negative_log_density,
    roc_curve,
    track_auc,
    unit_and_norm,
)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 1e-4, 0.3, np.pi / 2, 3.0, np.pi - 1e-9, np.pi])
def test_an_angle_is_exact_however_small_or_wide_it_is(angle: float) -> None:
    a = np.array([[1.0, 0.0, 0.0]])
    b = np.array([[np.cos(angle), np.sin(angle), 0.0]])
    np.testing.assert_allclose(angles_rad(a, b), [angle], rtol=1e-12, atol=1e-15)


def test_azimuth_and_zenith_are_those_that_the_vector_was_made_of() -> None:
    random = np.random.default_rng(0)
    arrival_E2 = np.stack([random.uniform(0, 2 * np.pi, 500), random.uniform(0, np.pi, 500)], 1)
    azimuth_E, zenith_E = azimuth_zenith_rad(unit_vectors(arrival_E2))
    np.testing.assert_allclose(azimuth_E, arrival_E2[:, 0], atol=1e-9)
    np.testing.assert_allclose(zenith_E, arrival_E2[:, 1], atol=1e-12)
    azimuth_E, _ = azimuth_zenith_rad(np.array([[1.0, -1e-17, 0.0]]))
    assert azimuth_E == 0, "never a whole turn"


EVERY_KAPPA = [0.0, 1e-9, 1e-5, 9.9e-5, 1.01e-4, 1e-3, 0.1, 1.0, 7.5, 50.0, 713.0, 800.0, 1e4, 1e8]


@pytest.mark.parametrize("kappa", EVERY_KAPPA)
def test_the_density_has_the_integral_one_and_the_mean_angle(kappa: float) -> None:
    kappa_1 = np.array([kappa])
    widest = min(np.pi, 12 / np.sqrt(max(kappa, 1e-12)))  # the part of the sphere that has the probability

    def integral(power: int) -> float:
        def density(t: float) -> float:
            return t**power * 2 * np.pi * np.sin(t) * np.exp(-negative_log_density(kappa_1, np.array([t]))[0])

        return quad(density, 0, widest, epsabs=0, epsrel=1e-11)[0]

    np.testing.assert_allclose([integral(0), integral(1)], [1.0, mean_angle_rad(kappa_1)[0]], rtol=1e-8)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 5.0, 1e4])
def test_drawn_angles_have_the_mean_that_is_expected(kappa: float) -> None:
    kappa_E = np.full(40_000, kappa)
    drawn = drawn_angles_rad(kappa_E, np.random.default_rng(1))
    assert abs(drawn.mean() / mean_angle_rad(kappa_E)[0] - 1) < 4 * drawn.std() / drawn.mean() / 200
    assert drawn.min() >= 0
    assert drawn.max() <= np.pi


def report(events: PredictedEvents, bootstraps: int = 0) -> MetricReport:
    return evaluate(events, bootstraps=bootstraps, seed=0)


def test_figures_of_five_hand_made_events_of_which_one_of_unknown_topology_counts_among_all_only() -> None:
    found = report(events_at([0.5, 2.0, 4.0, 10.0, 50.0], [9.0, 8.0, 7.0, 6.0, 5.0], [1, 1, 1, 0, -1]))
    assert found.sizes == {"events": 5, "tracks": 3, "cascades": 1}
    assert any("1 events are not known to be a track or a cascade" in note for note in found.notes)
    expected = {
        "angle_mean_deg": 66.5 / 5,
        "angle_median_deg": 4.0,
        "angle_68_deg": 4.0 + 0.72 * 6.0,
        "track_angle_mean_deg": 6.5 / 3,
        "track_angle_median_deg": 2.0,
        "cascade_angle_mean_deg": 10.0,
        "topology_auc": 1.0,
        "no_direction_share": 0.0,
    }
    assert {name: found.metrics[name].value for name in expected} == pytest.approx(expected, rel=1e-9)


def test_a_calibrated_model_is_at_its_floors() -> None:
    events = calibrated_events(20_000)
    metrics = report(events, bootstraps=40).metrics
    expected = events.angles_deg()[""].std() / math.sqrt(20_000)
    assert metrics["angle_mean_deg"].error == pytest.approx(expected, rel=0.4), "of the mean"
    assert metrics["kappa_pull_mean"].value == pytest.approx(2, abs=0.05)
    assert metrics["kappa_pull_median_ratio"].value == pytest.approx(1, abs=0.05)
    assert 0.93 < metrics["kappa_decile_lowest_ratio"].value < 1 < metrics["kappa_decile_highest_ratio"].value < 1.07
    for name in ("kappa_pull_mean", "kappa_nll_mean"):
        assert verdict(metrics[name]) == "at floor", name
        assert abs(metrics[name].value - metrics[name].floor) < 4 * metrics[name].error, name
        assert 0 < metrics[name].floor_error < metrics[name].error / 2, "the mean of 20 draws"


@pytest.mark.parametrize(("too_sure", "ratio"), [(4.0, 2.0), (0.25, 0.5)])
def test_a_model_that_is_too_sure_or_too_modest_is_told_by_how_much(too_sure: float, ratio: float) -> None:
    events = calibrated_events(20_000, too_sure=too_sure)
    tracks = events.take(events.topology_E == 1)  # of a wide distribution the mean angle has an end, at 90°
    metrics = report(tracks, bootstraps=20).metrics
    assert metrics["kappa_pull_mean"].value == pytest.approx(2 * too_sure, rel=0.1)
    assert verdict(metrics["kappa_pull_mean"]) == verdict(metrics["kappa_nll_mean"]) == "off"
    right = report(replace(tracks, kappa_E=tracks.kappa_E / too_sure)).metrics["kappa_nll_mean"]
    assert metrics["kappa_nll_mean"].floor == pytest.approx(right.floor, abs=0.001), "of the same errors"
    *_, ratio_B = kappa_bins(tracks.angle_rad_E, tracks.kappa_E)
    assert len(ratio_B) == 10
    np.testing.assert_allclose(ratio_B, ratio, rtol=0.12)


def test_the_pull_of_wide_distributions_is_judged_by_its_floor_and_not_by_two() -> None:
    kappa_E = np.ones(5_000)
    right = events_at(np.degrees(drawn_angles_rad(kappa_E, np.random.default_rng(3))), kappa_E, [1] * 5_000)
    metric = report(right, bootstraps=20).metrics["kappa_pull_mean"]
    assert metric.floor < 1.5
    assert verdict(metric) == "at floor"
    assert verdict(replace(metric, value=4 - metric.floor)) == "off", "as far from 2, but on the other side"


def test_bins_of_kappa_hold_equal_numbers_and_are_fewer_for_few_events() -> None:
    kappa = np.arange(1.0, 61.0)
    kappa_B, angle_B, ratio_B = kappa_bins(np.full(60, 0.5), kappa)
    np.testing.assert_allclose(kappa_B, [10.5, 30.5, 50.5])
    np.testing.assert_allclose(angle_B[0] / ratio_B[0], mean_angle_rad(kappa[:20]).mean())
    assert len(kappa_bins(np.array([0.1]), np.array([5.0]))[0]) == 1


def test_one_event_has_figures_without_errors_and_none_is_an_error_of_the_caller() -> None:
    metrics = report(events_at([3.0], [100.0], [1]), bootstraps=10).metrics
    assert metrics["angle_mean_deg"].value == pytest.approx(3.0)
    assert math.isnan(metrics["angle_mean_deg"].error)
    assert "cascade_angle_mean_deg" not in metrics
    assert "topology_auc" not in metrics
    with pytest.raises(ValueError, match="no event"):
        report(events_at([], [], []))


def test_predictions_without_direction_are_counted_and_spoil_no_other_number() -> None:
    good = events_at([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [1, 0, 1, 0])
    raw_E3 = good.direction_E3 * good.kappa_E[:, None]
    raw_E3[1], raw_E3[2] = 0.0, (np.inf, 0.0, 0.0)
    direction_E3, kappa_E = unit_and_norm(raw_E3)
    found = report(replace(good, direction_E3=direction_E3, kappa_E=kappa_E), bootstraps=10)
    assert found.metrics["no_direction_share"].value == 0.5
    assert found.metrics["angle_mean_deg"].value == pytest.approx(2.5)
    assert any("2 events have no predicted direction" in note for note in found.notes)
    alone = evaluate(replace(good, direction_E3=np.full((4, 3), np.nan), kappa_E=np.zeros(4)), bootstraps=10, seed=0)
    assert list(alone.metrics) == ["no_direction_share"]


def test_a_model_that_says_one_direction_only_shows() -> None:
    spread = calibrated_events(2000)
    collapsed = replace(spread, direction_E3=np.tile([0.0, 0.0, 1.0], (2000, 1)))
    assert report(collapsed).metrics["mean_direction_norm"].value == pytest.approx(1.0)
    assert report(spread).metrics["mean_direction_norm"].value < 0.1
    assert report(collapsed).metrics["zenith_bias_deg"].value == pytest.approx(-90, abs=3)


def test_every_metric_that_is_defined_is_measured_and_baselines_lack_events_aloud() -> None:
    events = calibrated_events(500)
    events.baselines["line"][:100] = np.nan
    energy_E, baselines = np.geomspace(1, 9e8, 500), events.baselines | {"pandel": events.true_E3}
    found = report(replace(events, baselines=baselines, energy_gev_E=energy_E))
    assert set(found.metrics) == set(DEFINITIONS)
    assert found.metrics["line_angle_mean_deg"].value > found.metrics["angle_mean_deg"].value
    assert any("100 events have no direction from the method 'line'" in note for note in found.notes)


def test_figures_of_energies_of_five_hand_made_events() -> None:
    """Truth 10², 10², 10³, 10³ and unknown; predicted 0.1 above, 0.3 below, right, and not at all."""
    lg_energy_E2 = np.array([[2.1, 0.1], [1.7, 0.1], [3.0, 0.5], [np.nan, np.nan], [3.0, 0.5]])
    energy_gev_E = np.array([100.0, 100.0, 1000.0, 1000.0, 0.0])
    events = replace(events_at([1.0] * 5, [9.0] * 5, [1, 1, 0, 0, 1]), lg_energy_E2=lg_energy_E2)
    measured = report(replace(events, energy_gev_E=energy_gev_E), bootstraps=5)
    found = {name: metric.value for name, metric in measured.metrics.items() if "energy" in name}
    expected = {
        "lg_energy_bias": -0.2 / 3,
        "lg_energy_rms": math.sqrt(0.1 / 3),
        "lg_energy_68": (0.068 - (-0.3 + 0.32 * 0.3)) / 2,
        "lg_energy_pull_mean": -2 / 3,
        "lg_energy_pull_std": math.sqrt(10 / 3 - 4 / 9),
        "lg_energy_true_std": math.sqrt(2) / 3,
        "track_lg_energy_bias": -0.1,
        "track_lg_energy_pull_std": 2.0,
        "cascade_lg_energy_rms": 0.0,
        "decade_2_lg_energy_rms": math.sqrt(0.05),
        "decade_3_lg_energy_bias": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert len(found) == 5 * 5 + 1, "all, tracks, cascades and two decades"
    assert any("2 events have no predicted or no known energy" in note for note in measured.notes)
    nothing = report(replace(events, lg_energy_E2=np.full((5, 2), np.nan)))
    assert not [name for name in nothing.metrics if "energy" in name]
    assert not [note for note in nothing.notes if "energy" in note]


def test_the_error_of_energies_is_at_its_floor_if_it_is_right_and_off_if_it_is_not() -> None:
    events = calibrated_events(5000)
    too_sure = replace(events, lg_energy_E2=events.lg_energy_E2 * [1.0, 0.5])
    right, wrong = (report(one, bootstraps=20).metrics["lg_energy_pull_std"] for one in (events, too_sure))
    assert (verdict(right), verdict(wrong)) == ("at floor", "off")
    assert wrong.value == pytest.approx(2, rel=0.05)


def test_kappa_separates_tracks_from_cascades_as_counted_by_hand() -> None:
    # Pairs (track, cascade): 5 > 1, 5 > 3, 3 > 1, 3 = 3.
    assert track_auc(np.array([5.0, 3.0, 1.0, 3.0, 99.0]), np.array([1, 1, 0, 0, -1], np.int8)) == 3.5 / 4
    for kinds in np.array([[1, 1], [0, 0], [-1, -1]], np.int8):
        assert np.isnan(track_auc(np.array([1.0, 2.0]), kinds))
        assert roc_curve(np.array([1.0, 2.0]), kinds) is None
    curve = roc_curve(np.array([4.0, 2.0, 3.0, 1.0]), np.array([1, 1, 0, 0], np.int8))
    np.testing.assert_allclose(curve, [[0.5, 0.5, 1, 1], [0, 0.5, 0.5, 1]])
