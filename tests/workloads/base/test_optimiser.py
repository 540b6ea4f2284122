"""An optimiser without the marks for torch's compiler learns and saves the same. Bad updates, averaged weights."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from workloads.base.context import StepContext, UpdateLimits
from workloads.base.optimiser import AveragedWeights, GradientSum, GuardedOptimiser, PartGradients, uncompiled


def numbers(value: float) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(value)
    return network


@pytest.mark.parametrize(
    ("gradient", "loss", "is_skipped"),
    [
        *((3.0, -3.0, False), (2e3, 0.0, True), (-2e3, 0.0, True), (1.0, 11.0, True), (1.0, -11.0, True)),
        *((torch.nan, 0.0, True), (1.0, torch.nan, True), (torch.inf, 1.0, True), (1.0, -torch.inf, True)),
    ],
)
def test_an_update_beyond_a_limit_or_not_finite_changes_nothing(gradient: float, loss: float, is_skipped: bool) -> None:
    network, context = numbers(1.0), StepContext(torch.device("cpu"), seed=1, limits=UpdateLimits(10.0, 1e3))
    optimiser = GuardedOptimiser(network, SGD(network.parameters(), lr=0.1, fused=True), clip=0.0, context=context)
    total = GradientSum()
    total.add(PartGradients([torch.full((1, 1), gradient)], torch.tensor([loss, 5.0])))
    result = optimiser.update(total, 2)
    assert float(result.skipped) == is_skipped
    assert (network.weight.item() == 1.0) == is_skipped
    torch.testing.assert_close(result.grad_norm, torch.tensor(abs(gradient)), equal_nan=True)


def test_the_average_starts_short_and_then_has_the_given_decay() -> None:
    network = numbers(0.0)
    averaged = AveragedWeights(network, decay=0.5)
    assert not averaged.average.weight.requires_grad
    with torch.no_grad():
        network.weight.fill_(1.0)

    averaged.update(1)
    assert averaged.average.weight.item() == pytest.approx(10 / 11)  # decay 1 / 11
    with torch.no_grad():
        network.weight.fill_(3.0)
    averaged.update(90)
    assert averaged.average.weight.item() == pytest.approx((10 / 11 + 3) / 2)  # not 90 / 100
    assert network.weight.item() == 3


KINDS = pytest.mark.parametrize(("kind", "options"), [(Adam, {"betas": (0.5, 0.9)}), (SGD, {"momentum": 0.9})])


def trained(optimiser: Adam | SGD, weight: nn.Parameter) -> None:
    for gradient in ([1.0, -2.0, 0.5], [0.1, 0.0, -3.0]):
        weight.grad = torch.tensor(gradient)
        optimiser.step()
        assert optimiser.param_groups[0]["lr"] == 0.1
        optimiser.zero_grad()
        assert weight.grad is None


@KINDS
def test_an_optimiser_without_the_marks_learns_and_saves_what_torchs_does(
    kind: type[Adam | SGD], options: dict[str, Any]
) -> None:
    weights = [nn.Parameter(torch.tensor([1.0, 2.0, 3.0])) for _ in range(2)]
    torchs = kind([weights[0]], 0.1, fused=True, **options)
    plain = uncompiled(kind)([weights[1]], 0.1, fused=True, **options)
    trained(torchs, weights[0])
    trained(plain, weights[1])
    assert torch.equal(*weights)
    assert str(plain.state_dict()) == str(torchs.state_dict())

    again = uncompiled(kind)([weights[1]], 0.2, fused=True, **options)
    assert again.param_groups[0]["lr"] == 0.2
    again.load_state_dict(copy.deepcopy(torchs.state_dict()))
    trained(again, weights[1])
    trained(torchs, weights[0])
    assert torch.equal(*weights)


@pytest.mark.process
def test_a_trainer_that_starts_and_computes_its_first_step_does_not_import_torchs_compiler() -> None:
    code = """
import sys
import torch
from toy_events import toy_batch
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.base.context import StepContext

context = StepContext(torch.device("cpu"), 0)
tasks = [WganTask(WganConfig(), context), LikelihoodTask(LikelihoodConfig(), context)]
for task in tasks:
    task.state_dict()
slow = {"torch._dynamo", "sympy", "matplotlib", "scipy", "pandas"}
print(sorted(slow & sys.modules.keys()))
for task in tasks:
    task.step(toy_batch(4))
print(sorted(slow & sys.modules.keys()))
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    # torch itself imports sympy to compute gradients.
    assert done.stdout == "[]\n['sympy']\n"
