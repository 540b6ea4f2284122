"""Metrics of predicted directions: hand-computed values, calibration, degenerate samples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.workloads.direction.metrics.events import calibrated_events, events_at
from workloads.base.report.metric import Floor
from workloads.base.report.outcome import MetricReport
from workloads.base.report.verdict import verdict
from workloads.direction.metrics.calibration import kappa_bins
from workloads.direction.metrics.definitions import DEFINITIONS
from workloads.direction.metrics.evaluate import CALIBRATED, POSTERIOR, evaluate
from workloads.direction.metrics.predicted import PredictedEvents, unit_and_norm
from workloads.direction.metrics.von_mises_fisher import drawn_angles_rad, mean_angle_rad


def report(events: PredictedEvents, bootstraps: int = 0) -> MetricReport:
    return evaluate(events, bootstraps=bootstraps, seed=0)


def values(events: PredictedEvents) -> dict[str, float]:
    return {name: metric.value for name, metric in report(events).metrics.items()}


def test_figures_of_five_hand_made_events() -> None:
    found = values(events_at([0.5, 2.0, 4.0, 10.0, 50.0], [9.0, 8.0, 7.0, 6.0, 5.0], [1, 1, 1, 0, -1]))
    expected = {
        "angle_mean_deg": 66.5 / 5,
        "angle_median_deg": 4.0,
        "angle_68_deg": 4.0 + 0.72 * 6.0,
        "track_angle_mean_deg": 6.5 / 3,
        "track_angle_median_deg": 2.0,
        "cascade_angle_mean_deg": 10.0,
        "angle_below_1_deg_share": 0.2,
        "angle_below_5_deg_share": 0.6,
        "angle_below_20_deg_share": 0.8,
        "topology_auc": 1.0,
        "no_direction_share": 0.0,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name


def test_the_pull_of_hand_made_events() -> None:
    found = values(events_at([90.0, 60.0], [3.0, 4.0], [1, 1]))
    assert found["kappa_pull_mean"] == pytest.approx((6 + 4) / 2)
    assert found["kappa_pull_median_ratio"] == pytest.approx(5 / math.log(4))


def test_a_calibrated_model_is_at_its_floors() -> None:
    metrics = report(calibrated_events(20_000), bootstraps=20).metrics
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
    assert verdict(metrics["kappa_pull_mean"]) == "off"
    bins = kappa_bins(tracks.angle_rad_E, tracks.kappa_E)
    assert len(bins.kappa_B) == 10
    np.testing.assert_allclose(bins.ratio_B, ratio, rtol=0.12)


def test_the_pull_of_wide_distributions_is_judged_by_its_floor_and_not_by_two() -> None:
    right = events_at(
        np.degrees(drawn_angles_rad(np.full(5_000, 1.0), np.random.default_rng(3))), np.ones(5_000), [1] * 5_000
    )
    metric = report(right, bootstraps=20).metrics["kappa_pull_mean"]
    assert metric.floor < 1.5
    assert verdict(metric) == "at floor"
    assert verdict(replace(metric, value=4 - metric.floor)) == "off", "as far from 2, but on the other side"


def test_bins_of_kappa_hold_equal_numbers_and_are_fewer_for_few_events() -> None:
    kappa = np.arange(1.0, 61.0)
    bins = kappa_bins(np.full(60, 0.5), kappa)
    np.testing.assert_allclose(bins.kappa_B, [10.5, 30.5, 50.5])
    np.testing.assert_allclose(bins.expected_B[0], mean_angle_rad(kappa[:20]).mean())
    assert len(kappa_bins(np.array([0.1]), np.array([5.0])).kappa_B) == 1


def test_the_error_of_the_mean_is_that_of_the_mean() -> None:
    events = calibrated_events(4000)
    error = report(events, bootstraps=200).metrics["angle_mean_deg"].error
    assert error == pytest.approx(events.angles_deg()[""].std() / math.sqrt(4000), rel=0.2)


def test_the_same_seed_gives_the_same_report() -> None:
    events = calibrated_events(300)
    assert str(report(events, bootstraps=5)) == str(report(events, bootstraps=5))  # NaN is equal to no NaN


def test_one_event_has_figures_without_errors() -> None:
    metrics = report(events_at([3.0], [100.0], [1]), bootstraps=10).metrics
    assert metrics["angle_mean_deg"].value == pytest.approx(3.0)
    assert math.isnan(metrics["angle_mean_deg"].error)
    assert "cascade_angle_mean_deg" not in metrics
    assert "topology_auc" not in metrics


def test_no_event_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no event"):
        report(events_at([], [], []))


def test_events_of_unknown_topology_count_among_all_only() -> None:
    found = report(events_at([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [-1, -1, -1]))
    assert found.sizes == {"events": 3, "tracks": 0, "cascades": 0}
    assert not [name for name in found.metrics if name.startswith(("track", "cascade", "topology"))]
    assert any("3 events are not known to be a track or a cascade" in note for note in found.notes)


def test_predictions_without_direction_are_counted_and_spoil_no_other_number() -> None:
    good = events_at([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [1, 0, 1, 0])
    raw_E3 = good.direction_E3 * good.kappa_E[:, None]
    raw_E3[1], raw_E3[2] = 0.0, np.nan
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


def test_baselines_stand_beside_the_model_and_lack_events_aloud() -> None:
    events = calibrated_events(500)
    events.baselines["line"][:100] = np.nan
    found = report(events)
    assert found.metrics["line_angle_mean_deg"].value > found.metrics["angle_mean_deg"].value
    assert "line_angle_10_deg" not in found.metrics
    assert any("100 events have no direction from the method 'line'" in note for note in found.notes)


def test_floors_of_angles_are_told_only_where_they_are_given() -> None:
    events = calibrated_events(300)
    assert report(events).floor_kind == CALIBRATED
    assert math.isnan(report(events).metrics["angle_mean_deg"].floor)
    given = evaluate(events, bootstraps=0, seed=0, floors={"angle_mean_deg": Floor(4.2, 0.3)})
    assert given.floor_kind == POSTERIOR
    assert given.metrics["angle_mean_deg"].floor == 4.2
    assert given.metrics["angle_mean_deg"].floor_error == 0.3


def test_every_metric_that_is_measured_is_defined_and_almost_every_defined_one_is_measured() -> None:
    events = calibrated_events(500)
    metrics = report(replace(events, baselines=events.baselines | {"pandel": events.true_E3})).metrics
    assert set(metrics) == set(DEFINITIONS)


@pytest.mark.parametrize("direction", [(np.nan, 0, 1), (np.inf, 0, 0), (0, 0, 0)])
def test_a_vector_without_direction_has_concentration_zero(direction: tuple[float, ...]) -> None:
    unit, norm = unit_and_norm(np.array([direction, (0, 0, 7)], np.float32))
    assert np.isnan(unit[0]).all()
    assert norm.tolist() == [0, 7]
    np.testing.assert_allclose(unit[1], [0, 0, 1])
