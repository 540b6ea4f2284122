"""Network of sets: its two branches, and their product."""

from __future__ import annotations

import pytest
import torch
from direction_events import direction_microbatch, event_input
from torch import Tensor

from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.models.network import EventInput, angle_deg
from workloads.direction.models.sets import SetsNetwork, branch_inputs

TRACK = [number for number, name in enumerate(CLASSICAL_FITS) if name.startswith("track")]


@pytest.fixture
def network() -> SetsNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return SetsNetwork(8, 2)


@pytest.fixture
def events() -> EventInput:
    return event_input(direction_microbatch(counts=[6, 0, 1, 30, 12]))


def slopes(value: Tensor, network: SetsNetwork, branch: str) -> list[Tensor]:
    parameters = list(network.get_submodule(branch).parameters())
    return list(torch.autograd.grad(value.square().sum(), parameters, materialize_grads=True, retain_graph=True))


def test_the_light_learns_from_its_own_loss_alone(network: SetsNetwork, events: EventInput) -> None:
    """Through the product it would learn next to nothing: the track fit is nearly right for most events."""
    prediction = network(events)
    (light_E3,) = prediction.auxiliary
    assert all((slope == 0).all() for slope in slopes(prediction.p_E3, network, "light"))
    assert any((slope != 0).any() for slope in slopes(prediction.p_E3, network, "trust"))
    assert any((slope != 0).any() for slope in slopes(light_E3, network, "light"))
    assert all((slope == 0).all() for slope in slopes(light_E3, network, "trust"))


def test_the_light_knows_nothing_of_the_track_fit(events: EventInput) -> None:
    """With it in a shared trunk the network follows the fit, and learns no cascades."""
    before = branch_inputs(events)
    events.fits_EF[:, TRACK] += 0.5
    after = branch_inputs(events)
    assert torch.equal(before.sensors_a_TF, after.sensors_a_TF)
    assert torch.equal(before.events_a_EF, after.events_a_EF)
    assert not torch.equal(before.sensors_b_TF, after.sensors_b_TF)


def test_before_training_the_prediction_is_the_track_fit(network: SetsNetwork, events: EventInput) -> None:
    prediction = network(events)
    track_E3 = torch.nn.functional.normalize(events.fits_EF[:, TRACK[:3]], dim=1)
    assert (angle_deg(prediction.p_E3, track_E3) < 5).all()


def test_direct_light_of_the_fitted_track_has_no_residual() -> None:
    """A Cherenkov front at the speed of light, from the point and time of the fit."""
    events = event_input(direction_microbatch(counts=[20]))
    fits = dict(zip(CLASSICAL_FITS, events.fits_EF[0].tolist(), strict=True))
    source = torch.tensor([fits[f"track_{axis}"] for axis in "xyz"])
    offset_T3 = events.position_T3 - torch.tensor([fits[f"track_at_{axis}_m"] for axis in "xyz"])
    along_T = -offset_T3 @ source
    aside_T = (offset_T3 + along_T.unsqueeze(1) * source).norm(dim=1)
    # Cherenkov angle: cos θ = 1 / 1.3195. Light leaves the track aside / tan θ before the nearest point.
    tangent, sine = (1.3195**2 - 1) ** 0.5, (1 - 1.3195**-2) ** 0.5
    light_T = fits["track_ns"] + (along_T - aside_T / tangent + aside_T / sine * 1.35634) / 0.299792458
    events.time_P[:] = light_T[events.pulses.event_P]
    events.auxiliary_P[:] = False

    inputs = branch_inputs(events)

    residual_T = inputs.sensors_b_TF[:, 2] * 300
    torch.testing.assert_close(residual_T, torch.zeros_like(residual_T), atol=0.05, rtol=0)
    torch.testing.assert_close(inputs.sensors_b_TF[:, 1] * 100, aside_T, atol=0.05, rtol=1e-4)


def test_features_are_bounded_for_fits_far_away(events: EventInput) -> None:
    events.fits_EF[:] = events.fits_EF.sign() * 1e6
    inputs = branch_inputs(events)
    for features in (inputs.sensors_a_TF, inputs.events_a_EF, inputs.sensors_b_TF, inputs.events_b_EF):
        assert features.isfinite().all()
        assert features.abs().max() <= 30
