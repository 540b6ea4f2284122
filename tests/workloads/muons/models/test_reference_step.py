"""The shipped step against the plain one that it is timed against."""

from __future__ import annotations

import pytest
import torch
from toy_events import toy_batch
from toy_tasks import CPU, SMALL, make_sgd_wgan

from benchmarks.reference_step import ReferenceStep


@pytest.mark.slow
@pytest.mark.parametrize(("azimuth", "weight"), [("symmetric", 1.0), ("learned", 0.0)])
def test_the_shipped_step_gives_the_result_of_the_plain_one(azimuth: str, weight: float) -> None:
    network = SMALL.model_copy(update={"azimuth": azimuth, "hidden": 64})
    shipped = make_sgd_wgan(rate=0.002, network=network, energy_score_weight=weight)
    plain = ReferenceStep(shipped.config, CPU, seed=1, sgd_rate=0.002)

    for seed in range(4):  # the first is the likelihood model's
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
    shipped = make_sgd_wgan(rate=0.002, critic_steps=1)
    plain = ReferenceStep(shipped.config, CPU, seed=1, sgd_rate=0.002)
    batch = toy_batch(512)

    for _ in range(2):
        found, expected = shipped.step(batch), plain.step(batch)

    assert "gp_norm" in expected
    assert {name: float(found[name]) for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
