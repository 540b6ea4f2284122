"""Tests of the likelihoods of tracks and point sources: derivatives, steps, and the maximum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.workloads.direction.fits.light_fronts import random_pulses
from workloads.direction.fits.maximise import Move, maximise
from workloads.direction.fits.pandel import ln_density_table
from workloads.direction.fits.pulses import PaddedPulses, padded_batches
from workloads.direction.fits.track import across, moved_track, track_scores, track_state
from workloads.direction.fits.vertex import moved_vertex, vertex_scores, vertex_state

Scores = Callable[[Tensor, PaddedPulses, Tensor], tuple[Tensor, Tensor]]


def padded() -> PaddedPulses:
    (batch,) = padded_batches(random_pulses([20, 24, 17, 22], clean_share=1.0))
    return batch


def some_tracks(pulses: PaddedPulses) -> Tensor:
    travel_B3 = F.normalize(
        torch.tensor([[0.3, 0.2, 0.9], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0], [-0.5, 0.5, -0.1]]), dim=1
    )
    return track_state(travel_B3, torch.tensor([[20.0, -30.0, 50.0]]).repeat(4, 1), pulses)


def check_scores(state: Tensor, scores: Scores, move: Move, pulses: PaddedPulses, parameters: int) -> None:
    """Compare the summed scores with differences of the ln likelihood, with a wide jitter: it is smooth."""
    table = ln_density_table(60.0)
    found_BK = scores(state, pulses, table)[1].sum(2)
    for parameter in range(parameters):
        step_BK = torch.zeros(len(state), parameters)
        step_BK[:, parameter] = 0.02
        more, less = (scores(move(state, sign * step_BK), pulses, table)[0] for sign in (1, -1))
        difference_B = (more - less) / 0.04
        assert torch.allclose(found_BK[:, parameter], difference_B, rtol=0.05, atol=0.6), parameter


def test_the_scores_of_a_track_are_the_derivatives_of_its_likelihood() -> None:
    pulses = padded()
    check_scores(some_tracks(pulses), track_scores, moved_track, pulses, 5)


def test_the_scores_of_a_point_source_are_the_derivatives_of_its_likelihood() -> None:
    pulses = padded()
    check_scores(vertex_state(pulses), vertex_scores, moved_vertex, pulses, 4)


def test_empty_places_tell_nothing() -> None:
    pulses = padded()
    shown = pulses.present_BL.unsqueeze(1) == 0
    for state, scores in ((some_tracks(pulses), track_scores), (vertex_state(pulses), vertex_scores)):
        assert (scores(state, pulses, ln_density_table(20.0))[1].masked_select(shown) == 0).all()


def test_the_vectors_across_are_at_right_angles_in_every_direction() -> None:
    travel_B3 = F.normalize(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    travel_B3 = torch.cat([travel_B3, torch.eye(3), -torch.eye(3)])
    frame_B33 = torch.stack([travel_B3, *across(travel_B3)], 1)
    assert torch.allclose(frame_B33 @ frame_B33.mT, torch.eye(3).expand(len(travel_B3), 3, 3), atol=1e-5)


def test_a_moved_track_keeps_a_unit_vector() -> None:
    state = moved_track(some_tracks(padded()), torch.ones(4, 5))
    assert torch.allclose(state[:, :3].norm(dim=1), torch.ones(4))


def parabola(state_BD: Tensor, middle_D: Tensor) -> tuple[Tensor, Tensor]:
    """ln likelihood of two "pulses" a parameter, one on each side of the middle."""
    apart_BD = state_BD - middle_D
    score_BDL = torch.stack([-apart_BD - 0.5, -apart_BD + 0.5], 2)
    return -apart_BD.square().sum(1), score_BDL


def test_the_maximum_of_a_parabola_is_found() -> None:
    middle_D = torch.tensor([3.0, -2.0, 0.5])
    state_BD, value_B = maximise(torch.zeros(5, 3), partial(parabola, middle_D=middle_D), torch.add, 60)
    assert torch.allclose(state_BD, middle_D.expand(5, 3), atol=1e-2)
    assert value_B.abs().max() < 1e-3


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_no_step_makes_a_likelihood_smaller(steps: int) -> None:
    pulses = padded()
    scores = partial(track_scores, pulses=pulses, table=ln_density_table(20.0))
    state = some_tracks(pulses)
    before_B = scores(state)[0]
    after, value_B = maximise(state, scores, moved_track, steps)
    assert (value_B >= before_B).all()
    assert torch.equal(scores(after)[0], value_B)
