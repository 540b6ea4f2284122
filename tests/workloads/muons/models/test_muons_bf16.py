"""Muon models in bfloat16: values against double precision, checkpoints, generation."""

from __future__ import annotations

import copy
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from toy_events import toy_batch
from toy_tasks import CPU, MAKE, saved

from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.muons.models.config import MuonNetworkConfig
from workloads.muons.models.likelihood_densities import NUM_KNOWN, Correction, MuonDensities
from workloads.muons.models.standardise import NUM_CONDITIONS
from workloads.muons.models.wgan_networks import Critic

MODELS = pytest.mark.parametrize("model", MAKE)
Network = TypeVar("Network", bound=nn.Module)
BF16 = StepContext(CPU, 1, bf16=True)
COUNTS = torch.randint(1, 40, (60,), generator=torch.Generator().manual_seed(2))
SEGMENTS = Segments.from_counts(COUNTS, int(COUNTS.sum()))


def in_both(network: Network) -> tuple[Network, Network]:
    """The network in double precision, and the one that computes in bfloat16."""
    return copy.deepcopy(network).double(), network


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def test_scores_and_slopes_of_the_critic_are_near_those_of_double_precision() -> None:
    features_PF, conditions_EC = torch.randn(SEGMENTS.num_particles, 2), torch.randn(60, NUM_CONDITIONS)
    exact, rounded = in_both(Critic(2, MuonNetworkConfig(hidden=64)))

    with BF16.precision():
        scores_E = rounded.raw_scores(features_PF, conditions_EC, SEGMENTS)
        slopes_PF = rounded.slope(features_PF, conditions_EC, SEGMENTS)

    doubles = features_PF.double(), conditions_EC.double(), SEGMENTS
    assert scores_E.dtype == torch.float32
    assert error(scores_E, exact.raw_scores(*doubles)) < 0.02
    # A rounded number may be beyond the kink of a leaky ReLU, or another muon the largest.
    assert error(slopes_PF, exact.slope(*doubles)) < 0.3


def test_corrected_features_are_near_those_of_double_precision() -> None:
    exact, rounded = in_both(Correction(2, MuonNetworkConfig()))
    inputs_EI, features_PF = torch.randn(60, NUM_KNOWN + 2), torch.randn(SEGMENTS.num_particles, 2)

    with BF16.precision():
        found = rounded(inputs_EI, features_PF, SEGMENTS) - features_PF

    assert found.dtype == torch.float32
    features_PF = features_PF.double()
    assert error(found, exact(inputs_EI.double(), features_PF, SEGMENTS) - features_PF) < 0.02


def test_the_likelihood_and_its_gradients_are_near_those_of_double_precision() -> None:
    exact, rounded = in_both(MuonDensities(2, MuonNetworkConfig()))
    features_PF, known_EK = torch.randn(SEGMENTS.num_particles, 2), torch.randn(60, NUM_KNOWN)
    normal_EZ = torch.randn(60, rounded.latent)

    with BF16.precision():
        found = rounded.bound(features_PF, known_EK, SEGMENTS, normal_EZ)
    expected = exact.bound(features_PF.double(), known_EK.double(), SEGMENTS, normal_EZ.double())

    assert found.muons_E.dtype == found.shared_E.dtype == torch.float32
    assert error(found.muons_E, expected.muons_E) < 1e-3
    gradients = (
        torch.autograd.grad((bound.muons_E + bound.shared_E).sum(), list(network.parameters()))
        for network, bound in ((rounded, found), (exact, expected))
    )
    for value, right in zip(*gradients, strict=True):
        assert value.dtype == torch.float32
        assert error(value, right) < 0.02


@MODELS
def test_weights_optimisers_and_checkpoints_are_those_of_float32(model: str) -> None:
    rounded, plain = MAKE[model](BF16), MAKE[model]()
    for task in (rounded, plain):
        task.step(toy_batch())

    found, expected = saved(rounded), saved(plain)

    for network, state in expected["networks"].items():
        assert {name: value.dtype for name, value in found["networks"][network].items()} == {
            name: value.dtype for name, value in state.items()
        }
    for name, optimiser in found["optimisers"].items():
        assert all(value.dtype == torch.float32 for one in optimiser["state"].values() for value in one.values()), name
    plain.load_state_dict(found)
    rounded.load_state_dict(expected)
    assert all(task.step(toy_batch(seed=2))["skipped_updates"] == 0 for task in (plain, rounded))


@MODELS
def test_events_are_generated_and_judged_with_float32_weights(model: str) -> None:
    task, plain = (MAKE[model](context) for context in (BF16, StepContext(CPU, 1)))
    task.step(toy_batch())
    plain.load_state_dict(saved(task))
    muons = []
    for one in (task, plain):
        torch.manual_seed(3)
        muons.append(one.generate(toy_batch(seed=4).microbatches[0].event_columns["primary"]).muons_P3)
    assert torch.equal(*muons)
    if model == "likelihood":
        assert task.held_out(toy_batch(seed=5)) == plain.held_out(toy_batch(seed=5))
