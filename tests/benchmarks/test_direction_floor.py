"""The likelihood of simulated events, and the sampler of their posterior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid

from benchmarks.bench_direction_floor import Posterior, figures, posterior, proposals, spherical_median
from benchmarks.direction_likelihood import NUM_PARAMETERS, TRAVEL, EventLikelihood, ln_delay_density
from workloads.direction.geometry import hex_geometry
from workloads.direction.ice import SCATTERING_M, SCATTERING_RATE_PER_NS
from workloads.direction.metrics.predicted import unit_and_norm
from workloads.direction.simulator.events import NATURAL, EndlessEvents, SimulatedEvents
from workloads.direction.simulator.light import JITTER_NS

POSITION_S3 = hex_geometry().position_S3


@pytest.fixture(scope="module")
def events() -> SimulatedEvents:
    return EndlessEvents(NATURAL, POSITION_S3, np.random.default_rng(4)).take(6)


@pytest.mark.parametrize("path_m", [1.0, 20.0, 80.0, 400.0])
def test_the_density_of_delays_has_the_integral_and_the_mean_of_its_parts(path_m: float) -> None:
    delay = np.linspace(-30, 8000, 400_000)
    density = np.exp(ln_delay_density(np.full(len(delay), path_m), delay))
    assert trapezoid(density, delay) == pytest.approx(1, abs=0.02)
    assert trapezoid(density * delay, delay) == pytest.approx(
        path_m / SCATTERING_M / SCATTERING_RATE_PER_NS, rel=0.03, abs=0.5
    )


def test_the_density_of_delays_is_that_of_drawn_ones() -> None:
    random = np.random.default_rng(0)
    shape = 50.0 / SCATTERING_M
    drawn = random.gamma(shape, 1 / SCATTERING_RATE_PER_NS, 200_000) + random.normal(0, JITTER_NS, 200_000)
    counts, edges = np.histogram(drawn, np.linspace(-5, 400, 28))
    middle = (edges[1:] + edges[:-1]) / 2
    expected = np.exp(ln_delay_density(np.full(27, 50.0), middle)) * np.diff(edges) * 200_000
    np.testing.assert_allclose(counts, expected, rtol=0.06)


def test_the_truth_is_likelier_than_points_away_from_it(events: SimulatedEvents) -> None:
    for index in range(len(events)):
        likelihood = EventLikelihood(events, index, POSITION_S3)
        away = np.tile(likelihood.truth, (4, 1))
        away[0, :3] += 60.0
        away[1, TRAVEL] = -away[1, TRAVEL]
        away[2, 6] += 1.0
        away[3, 7] += 300.0
        assert (likelihood(away) < likelihood(likelihood.truth[None])).all(), index


def test_chains_find_a_direction_about_as_well_as_they_expect(events: SimulatedEvents) -> None:
    tracks = [index for index in range(len(events)) if events.truth.is_track_E[index]]
    found = posterior(EventLikelihood(events, tracks[0], POSITION_S3), 16, 40, np.random.default_rng(0))
    assert found.is_track
    assert found.angle_deg < 10
    assert found.expected_deg < 10
    assert 0.05 < found.accepted < 0.9


def test_proposals_keep_directions_of_length_one() -> None:
    random = np.random.default_rng(1)
    points = random.normal(size=(200, NUM_PARAMETERS))
    points[:, TRAVEL] = unit_and_norm(points[:, TRAVEL])[0]
    moved = proposals(points[:100], points[100:], random)
    np.testing.assert_allclose(np.linalg.norm(moved[:, TRAVEL], axis=1), 1)
    assert not np.array_equal(moved, points[:100])


def test_the_spherical_median_is_not_drawn_by_far_directions() -> None:
    random = np.random.default_rng(2)
    near = unit_and_norm(np.array([0, 0, 1]) + 0.01 * random.normal(size=(70, 3)))[0]
    far = unit_and_norm(np.array([1, 0, 0]) + 0.01 * random.normal(size=(30, 3)))[0]
    found = spherical_median(np.concatenate([near, far]))
    assert np.degrees(np.arccos(found[2])) < 2


def test_figures_are_told_for_all_events_tracks_and_cascades() -> None:
    found = figures([Posterior(True, 1.0, 1.5, 0.2), Posterior(True, 3.0, 2.5, 0.2), Posterior(False, 20.0, 22.0, 0.2)])
    assert found["angle_mean_deg"]["value"] == 8.0
    assert found["track_angle_median_deg"]["value"] == 2.0
    assert found["track_angle_mean_deg"]["expected"] == 2.0
    assert found["cascade_angle_68_deg"] == {"value": 20.0, "error": 0.0, "events": 1}
