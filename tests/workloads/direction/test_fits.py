"""Classical fits: reference times, likelihoods with their derivatives and maximum, and all fits together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from direction_events import clean_event, segments_of
from scipy import integrate, stats
from torch import Tensor

from common.errors import BadInputError
from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits import (
    Move,
    classical_fits,
    fits_of,
    line_fits,
    maximise,
    moved_vertex,
    plain_lines,
    vertex_scores,
    vertex_state,
)
from workloads.direction.geometry import ICE, LIGHT_SPEED_M_NS, WATER, Medium, hex_geometry
from workloads.direction.light import (
    FARTHEST,
    MOST_PULSES,
    NOISE_SHARE,
    NOISE_WINDOW_NS,
    EventPulses,
    PaddedPulses,
    convolved_density,
    ln_density,
    ln_density_table,
    padded_batches,
    reference_times,
    used_pulses,
)
from workloads.direction.simulator import EventsPlan, file_rows
from workloads.direction.tracks import moved_track, track_scores, track_state

GEOMETRY = hex_geometry()
Vector = npt.NDArray[np.float64]


def near_track(travel: Vector, point: Vector, num_pulses: int = 60, medium: Medium = ICE) -> EventPulses:
    """Direct light at random places within 20 m of a track, 200 m before to 200 m behind a point, passed at 0."""
    travel_3, point_3 = torch.tensor(travel).float(), torch.tensor(point).float()
    generator = torch.Generator().manual_seed(num_pulses)
    along_P1 = 400 * torch.rand(num_pulses, 1, generator=generator) - 200
    across_P3 = torch.linalg.cross(_directions(num_pulses, generator), travel_3.expand(num_pulses, 3))
    rho_P1 = 2 + 18 * torch.rand(num_pulses, 1, generator=generator)
    across_P3 = across_P3 / across_P3.norm(dim=1, keepdim=True) * rho_P1
    time_P1 = along_P1 / LIGHT_SPEED_M_NS + rho_P1 * medium.cone_delay_ns_m
    return clean_event(point_3 + along_P1 * travel_3 + across_P3, time_P1.squeeze(1), replace(GEOMETRY, medium=medium))


def near_point(point_3: Vector, num_pulses: int = 40, medium: Medium = ICE) -> EventPulses:
    """Direct light at random places within 25 m of a point source, emitted at 0."""
    generator = torch.Generator().manual_seed(num_pulses)
    distance_P1 = 5 + 20 * torch.rand(num_pulses, 1, generator=generator)
    position_P3 = torch.tensor(point_3).float() + distance_P1 * _directions(num_pulses, generator)
    time_P = distance_P1.squeeze(1) * medium.point_delay_ns_m
    return clean_event(position_P3, time_P, replace(GEOMETRY, medium=medium))


def _directions(number: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(number, 3, generator=generator), dim=1)


def random_pulses(counts: list[int], seed: int = 0, clean_share: float = 0.5) -> EventPulses:
    """Events of pulses anywhere in the array within 2 µs."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    sensor_P = torch.randint(len(GEOMETRY), (total,), generator=generator)
    return EventPulses(
        torch.from_numpy(GEOMETRY.position_S3)[sensor_P],
        2000 * torch.rand(total, generator=generator) - 1000,
        torch.rand(total, generator=generator) + 0.5,
        torch.rand(total, generator=generator) < clean_share,
        segments_of(*counts),
        GEOMETRY,
    )


def test_every_event_has_the_time_that_it_has_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    counts_E = torch.randint(0, 9, (200,), generator=generator)
    offsets_E1 = torch.nn.functional.pad(counts_E.cumsum(0), (1, 0))
    time_P = torch.randn(int(offsets_E1[-1]), generator=generator) * 1e3 + 1e4
    clean_P = torch.rand(time_P.shape, generator=generator) < 0.4
    times_E = reference_times(time_P, clean_P, offsets_E1)
    for event, (first, end) in enumerate(offsets_E1.unfold(0, 2, 1).tolist()):
        clean = time_P[first:end][clean_P[first:end]]
        pulses = clean if len(clean) else time_P[first:end]
        assert times_E[event] == (pulses.median() if len(pulses) else 0)


Scores = Callable[[Tensor, PaddedPulses, Tensor], tuple[Tensor, Tensor]]


def padded() -> PaddedPulses:
    (batch,) = padded_batches(random_pulses([20, 24, 17, 22], clean_share=1.0))
    return batch


def some_tracks(pulses: PaddedPulses) -> Tensor:
    travel_B3 = torch.tensor([[0.3, 0.2, 0.9], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0], [-0.5, 0.5, -0.1]])
    return track_state(F.normalize(travel_B3, dim=1), torch.tensor([[20.0, -30.0, 50.0]]).repeat(4, 1), pulses)


def check_scores(state: Tensor, scores: Scores, move: Move, pulses: PaddedPulses, parameters: int) -> None:
    """Compare the summed scores with differences of the ln likelihood, with a wide jitter: it is smooth."""
    table = ln_density_table(60.0, ICE)
    found_BK = scores(state, pulses, table)[1].sum(2)
    for parameter in range(parameters):
        step_BK = torch.zeros(len(state), parameters)
        step_BK[:, parameter] = 0.02
        more, less = (scores(move(state, sign * step_BK), pulses, table)[0] for sign in (1, -1))
        difference_B = (more - less) / 0.04
        assert torch.allclose(found_BK[:, parameter], difference_B, rtol=0.05, atol=0.6), parameter


def test_the_scores_are_the_derivatives_of_the_likelihood() -> None:
    pulses = padded()
    check_scores(some_tracks(pulses), track_scores, moved_track, pulses, 5)
    check_scores(vertex_state(pulses), vertex_scores, moved_vertex, pulses, 4)


def test_no_step_makes_a_likelihood_smaller() -> None:
    pulses = padded()
    scores = partial(track_scores, pulses=pulses, table=ln_density_table(20.0, ICE))
    state = some_tracks(pulses)
    before_B = scores(state)[0]
    after, value_B = maximise(state, scores, moved_track, steps=9)
    assert (value_B >= before_B).all()
    assert torch.equal(scores(after)[0], value_B)


@pytest.mark.parametrize("shape", [0.3, 2.0, 12.0])
@pytest.mark.parametrize("residual_ns", [-8.0, 0.0, 5.0, 47.0, 49.0, 400.0])
@pytest.mark.parametrize("medium", [ICE, WATER])
def test_the_density_is_the_convolution_that_scipy_integrates(medium: Medium, shape: float, residual_ns: float) -> None:
    delay = stats.gamma(shape, scale=1 / medium.scattering_rate_per_ns)
    # With u = delay^shape the integrand has no pole.
    expected, _ = integrate.quad(
        lambda u: (
            stats.norm.pdf(residual_ns, u ** (1 / shape), 6.0)
            * delay.pdf(u ** (1 / shape))
            * u ** (1 / shape - 1)
            / shape
        ),
        1e-12,
        (max(residual_ns, 0) + 60.0) ** shape,
        points=[max(residual_ns, 1e-3) ** shape],
        limit=400,
    )
    found = convolved_density(shape, np.array([residual_ns]), 6.0, medium)[0]
    assert found == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_the_table_gives_the_density_with_noise_between_its_points(medium: Medium) -> None:
    distance = torch.tensor([2.0, 20.0, 77.0, 300.0]) * medium.scattering_m / 33.3
    residual = torch.tensor([-3.0, 2.5, 61.0, 350.0])
    found = ln_density(ln_density_table(6.0, medium), distance, residual, medium)[0]
    density = [
        convolved_density(d / medium.scattering_m, np.array([t]), 6.0, medium)[0]
        for d, t in zip(distance.tolist(), residual.tolist(), strict=True)
    ]
    expected = np.log((1 - NOISE_SHARE) * np.array(density) + NOISE_SHARE / NOISE_WINDOW_NS)
    assert found.numpy() == pytest.approx(expected, abs=0.02)


def test_far_from_the_light_only_noise_is_left() -> None:
    value, by_ln_distance, by_residual = ln_density(
        ln_density_table(20.0, ICE), torch.tensor([1e-3, 1e6, 50.0]), torch.tensor([-1e7, -1e4, 1e7]), ICE
    )
    assert value.tolist() == pytest.approx([math.log(NOISE_SHARE / NOISE_WINDOW_NS)] * 3, abs=1e-3)
    assert by_residual.abs().max() < 1e-6
    assert torch.isfinite(by_ln_distance).all()


def test_clean_pulses_and_auxiliary_ones_near_them_are_used() -> None:
    pulses = random_pulses([40, 0, 25, 60], clean_share=0.2)
    used = used_pulses(pulses)
    expected = []
    for event in range(4):
        own = (pulses.segments.event_P == event).nonzero().squeeze(1)
        if not len(own):
            continue
        clean = own[pulses.clean_P[own]]
        space = torch.cdist(pulses.position_P3[own], pulses.position_P3[clean]) / 150
        time = (pulses.time_P[own, None] - pulses.time_P[clean]) / 1000
        distance = (space.square() + time.square()).sqrt().amin(1)
        expected += own[pulses.clean_P[own] | (distance < FARTHEST)].tolist()
    assert 0 < len(expected) < 125
    assert torch.equal(used.time_P, pulses.time_P[expected])
    assert used.segments.num_events == 4


def test_without_a_clean_pulse_all_pulses_are_used_as_clean() -> None:
    used = used_pulses(random_pulses([7], clean_share=0.0))
    assert used.segments.counts_E.tolist() == [7]
    assert used.clean_P.all()


def test_of_too_many_pulses_clean_ones_come_first() -> None:
    for clean_share in (0.01, 0.5):
        pulses = random_pulses([4000], clean_share=clean_share)
        used = used_pulses(pulses)
        assert used.segments.counts_E.tolist() == [MOST_PULSES]
        assert int(used.clean_P.sum()) == min(int(pulses.clean_P.sum()), MOST_PULSES)


def fits(*events: tuple[list[int], list[float]], auxiliary: bool = False, pe: float = 1) -> list[dict[str, float]]:
    """Fits of events, each of sensors and times, by name."""
    sensor_P = np.array([sensor for sensors, _ in events for sensor in sensors], np.int16)
    time_P = np.array([time for _, times in events for time in times], np.float32)
    offsets_E1 = np.cumsum([0, *(len(sensors) for sensors, _ in events)])
    auxiliary_P = np.full(len(time_P), auxiliary)
    return named(classical_fits(sensor_P, time_P, np.full_like(time_P, pe), auxiliary_P, offsets_E1, GEOMETRY))


def named(fits_EF: npt.NDArray[np.float32] | Tensor) -> list[dict[str, float]]:
    return [dict(zip(CLASSICAL_FITS, row.tolist(), strict=True)) for row in fits_EF]


def vector(found: dict[str, float], name: str, unit: str = "") -> Vector:
    return np.array([found[f"{name}_{axis}{unit}"] for axis in "xyz"])


def angle_deg(a_3: Vector, b_3: Vector) -> float:
    return float(np.degrees(2 * np.arctan2(np.linalg.norm(a_3 - b_3), np.linalg.norm(a_3 + b_3))))


def true_tracks() -> list[tuple[Vector, Vector]]:
    """Direction of travel and a point of each."""
    rng = np.random.default_rng(3)
    travel = [vector / np.linalg.norm(vector) for vector in rng.normal(size=(6, 3))]
    return list(zip(travel, rng.uniform(-150, 150, (6, 3)), strict=True))


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_tracks_are_recovered_from_their_direct_light_and_are_likelier_than_point_sources(medium: Medium) -> None:
    for travel_3, point_3 in true_tracks():
        (found,) = named(fits_of(near_track(travel_3, point_3, medium=medium)))
        assert found["track_ln_l"] > found["vertex_ln_l"] + 0.5
        assert angle_deg(vector(found, "track"), -travel_3) < 1.2  # all light misses what no sensor saw here
        # The fitted point lies on the true track, at the time when the particle was there.
        apart_3 = vector(found, "track_at", "_m") - point_3
        along_m = apart_3 @ travel_3
        assert np.linalg.norm(apart_3 - along_m * travel_3) < 2
        assert found["track_ns"] == pytest.approx(along_m / LIGHT_SPEED_M_NS, abs=12)


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_point_sources_are_recovered_from_their_direct_light_and_are_likelier_than_tracks(medium: Medium) -> None:
    for truth_3 in np.random.default_rng(4).uniform(-300, 300, (6, 3)):
        (found,) = named(fits_of(near_point(truth_3, medium=medium)))
        assert found["vertex_ln_l"] > found["track_ln_l"] + 0.2
        assert np.linalg.norm(vector(found, "vertex", "_m") - truth_3) < 1.5
        assert found["vertex_ns"] == pytest.approx(0, abs=6)


def test_a_track_is_found_where_the_line_points_the_other_way() -> None:
    plan = EventsPlan(60, 1, seed=117)
    (rows,) = file_rows(plan, 0)
    event = rows.events.take(np.flatnonzero(rows.events.truth.is_track_E)[16:17])
    columns = (event.sensor_P, event.time_ns_P, event.charge_pe_P, event.auxiliary_P)
    (found,) = named(classical_fits(*columns, np.array([0, len(event.sensor_P)]), plan.geometry))
    assert angle_deg(vector(found, "line"), -event.truth.travel_E3[0]) > 120
    assert angle_deg(vector(found, "track"), -event.truth.travel_E3[0]) < 3


def test_the_line_points_to_the_source_along_the_track() -> None:
    travel_3, point_3 = true_tracks()[1]
    pulses = near_track(travel_3, point_3)
    (found,) = named(fits_of(pulses))
    assert angle_deg(vector(found, "line"), -travel_3) < 12
    assert 0.1 < found["line_speed_m_ns"] < 0.5
    assert angle_deg(plain_lines(pulses)[0].numpy(), -travel_3) < 15


def test_events_that_tell_little_much_or_nonsense_have_finite_fits() -> None:
    nothing, one, nonsense = ([], []), ([7], [1e4]), ([1, 2, 3, 4], [0.0, 5.0, 3e38, -3e38])
    one_sensor, one_time = ([7] * 9, np.linspace(0, 900, 9).tolist()), (list(range(9)), [5e3] * 9)
    for auxiliary, pe in ((False, 1), (True, 3e38)):
        found = fits(nothing, one, one_sensor, one_time, nothing, nonsense, auxiliary=auxiliary, pe=pe)
        for values in found:
            assert np.isfinite(list(values.values())).all()
            assert np.linalg.norm(vector(values, "track")) == pytest.approx(1, abs=1e-5)
        assert found[0] == {name: float(name in ("line_z", "track_z")) for name in CLASSICAL_FITS}
    assert torch.isfinite(fits_of(random_pulses([178_000, 3], clean_share=0.4))).all()


def test_the_order_of_the_pulses_of_an_event_does_not_matter() -> None:
    pulses = near_track(*true_tracks()[2])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    permuted = clean_event(pulses.position_P3[order], pulses.time_P[order], GEOMETRY)
    (found,), (other,) = (named(fits_of(of)) for of in (pulses, permuted))
    assert list(other.values()) == pytest.approx(list(found.values()), rel=1e-2, abs=0.1)
    assert angle_deg(vector(found, "track"), vector(other, "track")) < 0.05


@pytest.mark.parametrize("sensor", [-1, len(GEOMETRY)])
def test_a_sensor_that_the_geometry_lacks_is_named(sensor: int) -> None:
    with pytest.raises(BadInputError, match=f"sensor {sensor}, but the geometry has the sensors 0 to 5459"):
        fits(([3, sensor, 4], [0.0] * 3))


def test_pulses_on_a_line_give_the_line() -> None:
    time_P = torch.tensor([-300.0, 0.0, 150.0, 150.0, 600.0])
    travel_3 = torch.tensor([0.6, 0.0, -0.8])
    position_P3 = torch.tensor([10.0, 20.0, 30.0]) + 0.25 * time_P.unsqueeze(1) * travel_3
    lines = line_fits(position_P3, time_P, segments_of(5), ICE)
    assert torch.allclose(lines.travel_E3[0], travel_3, atol=1e-5)
    assert torch.allclose(lines.speed_E, torch.tensor([0.25]), atol=1e-5)
    assert torch.allclose(lines.point_E3[0], torch.tensor([10.0, 20.0, 30.0]) + 30 * travel_3, atol=1e-3)
    assert lines.residual_E.item() < 1e-3


def test_the_plain_fit_is_the_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    time_P, position_P3 = rng.normal(0, 300, 40), rng.normal(0, 100, (40, 3))
    slope_3 = np.polyfit(time_P, position_P3, 1)[0]
    position, time = torch.from_numpy(position_P3).float(), torch.from_numpy(time_P).float()
    lines = line_fits(position, time, segments_of(40), ICE, reweightings=0)
    assert np.allclose(lines.travel_E3[0].numpy() * lines.speed_E.item(), slope_3, rtol=1e-4)


def test_weights_make_the_line_robust_against_a_pulse_far_away() -> None:
    time_P = torch.linspace(-500, 500, 21)
    position_P3 = 0.3 * time_P.unsqueeze(1) * torch.tensor([1.0, 0.0, 0.0])
    position_P3[20] = torch.tensor([150.0, 900.0, 0.0])
    segments = segments_of(21)
    plain, robust = (line_fits(position_P3, time_P, segments, ICE, reweightings=n).travel_E3[0, 0] for n in (0, 2))
    assert torch.rad2deg(torch.acos(plain)) > 20
    assert torch.rad2deg(torch.acos(robust)) < 8
