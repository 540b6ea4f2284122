"""The shipped step against the plain one that it is timed against."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from toy_events import toy_batch
from toy_tasks import CPU, SMALL_WGAN

from workloads.base.context import StepContext
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.task import WganTask

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))

from reference_step import ReferenceStep


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_the_shipped_step_gives_the_result_of_the_plain_one(azimuth: str, weight: float) -> None:
    network = SMALL_WGAN.model_copy(update={"azimuth": azimuth, "hidden": 64})
    # SGD: Adam's first step knows the sign of a gradient only, also of one that is 0 but for rounding.
    config = WganConfig(network=network, optimiser="sgd", generator_lr=0.002, critic_lr=0.002)
    config = config.model_copy(update={"energy_score_weight": weight})
    shipped, plain = WganTask(config, StepContext(CPU, 1)), ReferenceStep(config, CPU, seed=1)

    for seed in range(3):
        batch = toy_batch(128, seed=seed)
        found, expected = shipped.step(batch), plain.step(batch)
        # A plain step with weights moved by 1e-7 differs as much: a maximum passes to another muon.
        for name, value in expected.items():
            assert float(found[name]) == pytest.approx(value, rel=5e-3, abs=2e-3), name
    for name, module in plain.networks.modules().items():
        found_weights = shipped.networks.modules()[name].state_dict()
        for key, one in module.state_dict().items():
            torch.testing.assert_close(found_weights[key], one, rtol=1e-5, atol=5e-4)


def test_a_single_update_is_that_of_the_plain_step_to_rounding() -> None:
    config = WganConfig(network=SMALL_WGAN, optimiser="sgd", generator_lr=0.002, critic_lr=0.002, critic_steps=1)
    shipped, plain = WganTask(config, StepContext(CPU, 1)), ReferenceStep(config, CPU, seed=1)
    batch = toy_batch(512)

    found, expected = shipped.step(batch), plain.step(batch)

    assert {name: float(found[name]) for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
