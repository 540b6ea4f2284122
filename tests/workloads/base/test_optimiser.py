"""torch's optimisers without the marks for its compiler: they learn and save the same, and start sooner."""

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

from workloads.base.optimiser import uncompiled

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


@KINDS
def test_an_update_that_overflowed_is_left_out(kind: type[Adam | SGD], options: dict[str, Any]) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimiser = uncompiled(kind)([weight], 0.1, fused=True, **options)
    optimiser.found_inf = torch.ones(())  # type: ignore[union-attr]
    weight.grad = torch.tensor([1.0, 1.0])
    optimiser.step()
    assert weight.tolist() == [1.0, 2.0]


@pytest.mark.process
def test_a_trainer_that_starts_and_counts_its_first_step_does_not_import_torchs_compiler() -> None:
    code = """
import sys
import torch
from toy_events import toy_batch
from services.trainer.speed.flop_meter import FlopMeter
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.task import WganTask
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.likelihood.task import LikelihoodTask
from workloads.base.context import StepContext

context = StepContext(torch.device("cpu"), 0)
tasks = [WganTask(WganConfig(), context), LikelihoodTask(LikelihoodConfig(), context)]
for task in tasks:
    task.state_dict()
slow = {"torch._dynamo", "sympy", "matplotlib", "scipy", "pandas"}
print(sorted(slow & sys.modules.keys()))
for task in tasks:
    FlopMeter().step(task, toy_batch(4))
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
