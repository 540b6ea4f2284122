"""What health sees of the WGAN: saturated scores, dead gradients, a collapsed generator; and a normal training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from toy_events import split, toy_batch
from toy_tasks import CPU, SMALL_WGAN, make_wgan

from services.config.health import HealthConfig
from services.trainer.health.health import Health, HealthWatch
from workloads.base.context import StepContext
from workloads.muons.models.wgan.spread import least_spread, moments
from workloads.muons.models.wgan.task import WganTask
from workloads.muons.models.wgan.training import ALARMS

PLAIN = SMALL_WGAN.model_dump() | {"layer_norm": False}
NO_LIMITS = HealthConfig(**{name: 0 for name in HealthConfig.model_fields if name.startswith(("warning", "critical"))})  # type: ignore[arg-type]


NORMAL = {"generator_lr": 1e-2, "critic_lr": 1e-2}
"""Rates for a network of an eighth of the width."""
QUICK = {name: replace(alarm, steps=alarm.steps // 4) for name, alarm in ALARMS.items()}
"""The model's limits, judged after a quarter of the steps."""


def warnings_of(task: WganTask, steps: int, before: Callable[[int], None] = lambda step: None) -> dict[str, int]:
    """First step of each metric that was warned about."""
    watch = HealthWatch(NO_LIMITS, QUICK)
    found: dict[str, int] = {}
    for step in range(1, steps + 1):
        before(step)
        metrics = {name: float(value) for name, value in task.step(toy_batch(seed=step)).items()}
        for reason in watch.judge(step, metrics).reasons:
            found.setdefault(reason.split()[0], step)
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_a_normal_training_is_not_warned_about(seed: int) -> None:
    assert warnings_of(make_wgan(StepContext(CPU, seed=seed), **NORMAL), 60) == {}


def test_a_critic_whose_scores_are_at_their_bound_is_warned_about() -> None:
    task = make_wgan(network=PLAIN, penalty_weight=0, critic_lr=0.05, energy_score_weight=0)
    assert warnings_of(task, 20).keys() == {"saturation"}


def test_a_critic_without_gradients_is_warned_about_and_so_is_the_generator_that_has_none_from_it() -> None:
    task = make_wgan(network=PLAIN, penalty_weight=0, critic_lr=1.0, energy_score_weight=0)
    assert warnings_of(task, 20).keys() == {"saturation", "critic_grad_norm", "generator_grad_norm"}


def test_a_generator_that_learns_nothing_is_warned_about() -> None:
    """The old launch line: SGD with a rate of 1e-5, no penalty."""
    rates = {"generator_lr": 1e-5, "critic_lr": 1e-5, "optimiser": "sgd"}
    task = make_wgan(network=PLAIN, penalty_weight=0, energy_score_weight=0, **rates)
    assert warnings_of(task, 30) == {"fake_spread": 25}


def test_a_generator_that_collapses_after_it_had_learned_is_warned_about() -> None:
    task = make_wgan(**NORMAL)

    def collapse(step: int) -> None:
        if step > 30:
            with torch.no_grad():
                task.networks.generator.muon_network[-1].weight.zero_()

    assert warnings_of(task, 60, collapse) == {"fake_spread": 55}


@pytest.mark.parametrize(("critic_lr", "weight"), [(1e-7, 1.0), (0.05, 1e-6)])
def test_a_critic_far_from_the_slope_that_the_penalty_asks_for_is_warned_about(critic_lr: float, weight: float) -> None:
    task = make_wgan(network=PLAIN | {"score_limit": 0}, critic_lr=critic_lr, penalty_weight=weight)
    assert "gp_norm" in warnings_of(task, 30)


def test_the_spread_is_that_of_all_parts_together() -> None:
    real, fake = torch.randn(1000, 2), torch.randn(1000, 2) * torch.tensor([0.5, 2.0]) + 3
    both, all_of_them = torch.stack([real, fake]), torch.ones(1000, 1)
    whole = least_spread(moments(both, all_of_them))
    parts = least_spread(moments(both[:, :10], all_of_them[:10]) + moments(both[:, 10:], all_of_them[10:]))
    assert math.isclose(float(whole), float(fake[:, 0].std() / real[:, 0].std()), rel_tol=1e-3)
    torch.testing.assert_close(parts, whole)
    more = torch.cat([both, torch.full((2, 7, 2), 1e3)], 1)
    assert torch.equal(moments(more, torch.cat([all_of_them, torch.zeros(7, 1)])), moments(both, all_of_them))


def test_saturation_and_spread_of_three_microbatches_are_those_of_their_batch() -> None:
    settings: dict[str, Any] = {"optimiser": "sgd", "generator_lr": 1e-6, "critic_lr": 1e-6}
    batch = toy_batch(30)
    one, three = make_wgan(**settings), make_wgan(**settings)
    whole, parts = one.step(batch), three.step(split(batch, [5, 14, 11]))
    assert 0 < float(whole["fake_spread"]) < 1
    assert float(parts["fake_spread"]) == pytest.approx(float(whole["fake_spread"]), rel=0.5)  # other noise
    assert float(whole["saturation"]) == float(parts["saturation"]) == 0.0


def test_a_batch_without_muons_breaks_no_series_and_gives_no_warning() -> None:
    task, watch = make_wgan(), HealthWatch(NO_LIMITS, ALARMS)
    task.step(toy_batch())
    hollow = toy_batch(2, counts=[0, 0])
    verdicts = [watch.judge(step, {k: float(v) for k, v in task.step(hollow).items()}) for step in range(1, 10)]
    assert {verdict.health for verdict in verdicts} == {Health.HEALTHY}
