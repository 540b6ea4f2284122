"""Likelihood of tracks from all light."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from direction_events import clean_event
from torch import Tensor

from workloads.direction import fits
from workloads.direction.fits import classical_fits
from workloads.direction.geometry import ICE, LIGHT_SPEED_M_NS, WATER, Geometry, Medium, hex_geometry
from workloads.direction.light import NOISE_PER_NS, PaddedPulses, ln_density, ln_density_table, padded_batches, strata
from workloads.direction.metrics import angles_rad
from workloads.direction.simulator import EventsPlan, Truth, expected_light, file_rows
from workloads.direction.tracks import _STRATA, _ln_light, _seen, lit_track_scores, moved_lit_track

GEOMETRY = hex_geometry()
TRUTH = Truth(
    np.array([0.3, 2.0, 4.0]),
    np.array([0.2, 1.5, 2.8]),
    np.array([300.0, 4e3, 9e4]),
    np.ones(3, bool),
    np.array([[20.0, -30.0, 50.0], [-200.0, 10.0, 0.0], [90.0, 120.0, -150.0]]),
)


def states() -> Tensor:
    """Lit tracks of TRUTH, each with its vertex as its point, where it is at 0, and 0 m from its shower."""
    rest_E3 = np.stack([np.zeros(3), np.zeros(3), np.log10(TRUTH.energy_gev_E)], 1)
    return torch.from_numpy(np.concatenate([TRUTH.travel_E3, TRUTH.vertex_E3, rest_E3], 1)).float()


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_the_light_of_a_track_and_its_shower_is_that_of_the_simulator(medium: Medium) -> None:
    made_track_ES, _, made_shower_ES = expected_light(TRUTH, Geometry(GEOMETRY.position_S3, medium))
    along_ES, rho_ES, *_ = _seen(states(), torch.from_numpy(GEOMETRY.position_S3).T)
    ln_track_ES, ln_shower_ES, range_ES = _ln_light(along_ES, rho_ES, states()[:, 8:].expand_as(rho_ES), medium)
    track_ES, shower_ES = ln_track_ES.exp(), ln_shower_ES.exp()
    end_E1 = torch.tensor([600.0, 750.0, 750.0]).unsqueeze(1)
    origin_ES = (along_ES - rho_ES * medium.cos_cherenkov / medium.sin_cherenkov).abs()
    inside_ES = ((origin_ES - end_E1).abs() > 80) & (rho_ES > 3)  # the ends are soft
    for found_ES, made_ES in ((track_ES, made_track_ES), (shower_ES, made_shower_ES)):
        assert np.allclose(found_ES[inside_ES], made_ES[inside_ES], rtol=0.02, atol=1e-4)
    # The sum over a few sensors is that over all of them.
    rank_K, weight_K = strata(_STRATA, len(GEOMETRY))
    by_distance_ES = shower_ES.gather(1, range_ES.argsort(1))
    assert torch.allclose(by_distance_ES[:, rank_K] @ weight_K, shower_ES.sum(1), rtol=0.15)


def three_pulses(medium: Medium) -> PaddedPulses:
    position_P3 = torch.tensor([[10.0, 0.0, 0.0], [0.0, 30.0, -20.0], [-40.0, 5.0, 60.0]])
    (pulses,) = padded_batches(
        clean_event(position_P3, torch.tensor([60.0, 180.0, 350.0]), Geometry(position_P3.numpy(), medium))
    )
    return pulses


@pytest.mark.parametrize("medium", [ICE, WATER])
def test_the_likelihood_is_that_of_a_poisson_process_of_the_pulses_that_are_used(medium: Medium) -> None:
    pulses, table, state_19 = three_pulses(medium), ln_density_table(6.0, medium), states()[:1]
    sensors_13K, weight_K, share = pulses.position_B3L[:, :, :2], torch.tensor([1.0, 4.0]), 0.5
    value_1, _ = lit_track_scores(state_19, pulses, table, (sensors_13K, weight_K), torch.tensor([[share]]))
    along_1L, rho_1L, *_ = _seen(state_19, pulses.position_B3L)
    light = _ln_light(along_1L, rho_1L, state_19[:, 8:].expand_as(rho_1L), medium)
    ln_track_P, ln_shower_P, range_P, along_P, rho_P = (one[0, :3] for one in (*light, along_1L, rho_1L))
    track_P, shower_P = ln_track_P.exp(), ln_shower_P.exp()
    time_P = pulses.time_BL[0, :3]
    late_P = time_P - along_P / LIGHT_SPEED_M_NS - rho_P * medium.cone_delay_ns_m
    rate_P = track_P * ln_density(table, rho_P / medium.sin_cherenkov, late_P, medium)[0].exp()
    rate_P += shower_P * ln_density(table, range_P, time_P - range_P * medium.point_delay_ns_m, medium)[0].exp()
    expected = (share * (rate_P + NOISE_PER_NS)).log().sum() - share * ((track_P + shower_P)[:2] @ weight_K)
    assert value_1.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("event", [0, 1, 2])
def test_the_scores_are_the_derivatives_of_the_likelihood(event: int) -> None:
    pulses, table, state_19 = three_pulses(ICE), ln_density_table(60.0, ICE), states()[event : event + 1].double()
    state_19[:, 3:6] /= 2  # nearer to the pulses
    pulses = PaddedPulses(
        *(one.double() if isinstance(one, Tensor) and one.is_floating_point() else one for one in pulses)
    )
    rest = (pulses, table.double(), (pulses.position_B3L, torch.ones(8).double()), torch.ones(1, 1).double())
    score_7 = lit_track_scores(state_19, *rest)[1][0].sum(1)
    assert (score_7.abs() > 1e-3).all()
    for parameter, score in enumerate(score_7.tolist()):
        step_17 = torch.zeros(1, 7).double()
        step_17[0, parameter] = 1e-5
        more, less = (lit_track_scores(moved_lit_track(state_19, sign * step_17), *rest)[0] for sign in (1, -1))
        assert score == pytest.approx(((more - less) / 2e-5).item(), rel=1e-3, abs=1e-5), parameter


@pytest.mark.parametrize("time_ns", [3e38, np.nan])
def test_times_that_can_not_be_do_no_harm_to_other_events_also_in_inference_mode(time_ns: float) -> None:
    sensor_P, charge_P, auxiliary_P = np.arange(24, dtype=np.int16), np.ones(24, np.float32), np.zeros(24, bool)
    time_P = np.tile(np.arange(12, dtype=np.float32) * 60, 2)
    expected_2F = classical_fits(sensor_P, time_P, charge_P, auxiliary_P, np.array([0, 12, 24]), GEOMETRY)
    time_P[3] = time_ns
    ln_density_table.cache_clear()
    with torch.inference_mode():
        found_2F = classical_fits(sensor_P, time_P, charge_P, auxiliary_P, np.array([0, 12, 24]), GEOMETRY)
    assert np.array_equal(found_2F[1], expected_2F[1])


def test_all_light_brings_tracks_nearer_to_the_truth_than_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EventsPlan(200, 1, seed=19)
    (rows,) = file_rows(plan, 0)
    events = rows.events.take(np.flatnonzero(rows.events.truth.is_track_E))
    columns = (events.sensor_P, events.time_ns_P, events.charge_pe_P, events.auxiliary_P)
    offsets_E1 = np.concatenate([[0], np.cumsum(events.counts_E)])

    def mean_deg() -> float:
        track_E3 = classical_fits(*columns, offsets_E1, plan.geometry)[:, 8:11].astype(np.float64)
        return math.degrees(angles_rad(track_E3, -events.truth.travel_E3).mean())

    of_all_light = mean_deg()
    monkeypatch.setattr(fits, "CANDIDATES", 1)
    monkeypatch.setattr(fits, "CANDIDATES_ROUND", (60.0, 0))
    monkeypatch.setattr(fits, "LIT_ROUNDS", ())
    assert of_all_light < 0.9 * mean_deg()
