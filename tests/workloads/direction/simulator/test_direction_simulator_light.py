from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import simple_detector as simple

from workloads.direction.geometry import hex_geometry, icecube_geometry
from workloads.direction.simulator.events import NATURAL, draw_truth
from workloads.direction.simulator.light import (
    Truth,
    direct_cascade_light,
    direct_track_light,
    expected_light,
)

Float64 = npt.NDArray[np.float64]
Direct = Callable[[Truth, npt.NDArray[np.int64], npt.NDArray[np.float32]], tuple[Float64, Float64]]
Expected = Callable[[Float64, Float64], tuple[Float64, Float64]]

POSITION_S3 = icecube_geometry().position_S3


def truth(num_events: int, seed: int = 0) -> Truth:
    return draw_truth(NATURAL, num_events, np.random.default_rng(seed))


def test_every_sensor_gets_the_light_of_the_formulas() -> None:
    events = truth(20)
    light = expected_light(events, POSITION_S3)

    assert light.track_event_T.tolist() == np.flatnonzero(events.is_track_E).tolist()
    assert 5 < len(light.track_TS) < 15
    for event in range(20):
        offset_S3 = POSITION_S3.astype(np.float64) - events.vertex_E3[event]
        energy, is_track = events.energy_gev_E[event], bool(events.is_track_E[event])
        expected_S = simple.cascade_light(energy, is_track)(offset_S3, events.travel_E3[event])
        np.testing.assert_allclose(light.cascade_ES[event], expected_S, rtol=0.01, atol=1e-7)
    for row, event in enumerate(light.track_event_T):
        offset_S3 = POSITION_S3.astype(np.float64) - events.vertex_E3[event]
        expected_S = simple.track_light(events.energy_gev_E[event])(offset_S3, events.travel_E3[event])
        wrong_S = ~np.isclose(light.track_TS[row], expected_S, rtol=0.01, atol=1e-7)
        # A sensor at the very end of the cone is in the light or not by the last digit.
        assert wrong_S.sum() <= 2


def test_brightness_scales_all_light_until_a_sensor_is_saturated() -> None:
    once = truth(10)
    twice = Truth(**{**vars(once), "brightness_E": np.full(10, 2.0)})
    light, more = expected_light(once, POSITION_S3), expected_light(twice, POSITION_S3)

    np.testing.assert_allclose(more.cascade_ES, np.minimum(2 * light.cascade_ES, 400), rtol=1e-5)
    np.testing.assert_allclose(more.track_TS, np.minimum(2 * light.track_TS, 400), rtol=1e-5)


@pytest.mark.parametrize(
    ("direct", "expected"),
    [(direct_track_light, simple.track_time), (direct_cascade_light, simple.cascade_time)],
    ids=["track", "cascade"],
)
def test_direct_light_arrives_when_the_shortest_way_says(direct: Direct, expected: Expected) -> None:
    events = truth(5)
    event_P = np.repeat(np.arange(5), 40)
    position_P3 = POSITION_S3[np.random.default_rng(1).integers(len(POSITION_S3), size=200)]
    time_P, path_P = direct(events, event_P, position_P3)

    for event in range(5):
        mine = event_P == event
        offset_P3 = position_P3[mine].astype(np.float64) - events.vertex_E3[event]
        expected_time_P, expected_path_P = expected(offset_P3, events.travel_E3[event])
        np.testing.assert_allclose(time_P[mine], expected_time_P, atol=1e-3)
        np.testing.assert_allclose(path_P[mine], expected_path_P, atol=1e-3)


def from_above(energy_gev: float) -> Truth:
    """A track through the centre, straight down."""
    zero = np.zeros(1)
    return Truth(zero, zero, np.array([energy_gev]), np.array([True]), np.zeros((1, 3)), np.ones(1))


def test_particles_travel_away_from_the_source() -> None:
    np.testing.assert_allclose(from_above(1e3).travel_E3, [[0, 0, -1]], atol=1e-12)


def test_a_track_from_above_is_seen_from_the_top_down() -> None:
    string_S3 = hex_geometry().position_S3[:60]
    time_P, _ = direct_track_light(from_above(1e4), np.zeros(60, np.int64), string_S3)

    assert all(later > earlier for earlier, later in pairwise(time_P))
