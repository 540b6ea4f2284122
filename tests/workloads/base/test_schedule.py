"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from workloads.base.schedule import learning_rate_factor
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.wgan.config import WganConfig


def test_learning_rates_warm_up_from_near_zero_and_then_follow_the_cosine() -> None:
    config = WganConfig(warmup_steps=9, schedule_steps=109)

    assert learning_rate_factor(0, config) == pytest.approx(0.1)
    assert learning_rate_factor(8, config) == pytest.approx(0.9)
    assert learning_rate_factor(9, config) == 1
    assert learning_rate_factor(109, config) == pytest.approx(0.05)
    assert learning_rate_factor(3, WganConfig(schedule="constant", warmup_steps=3)) == 1


def test_the_learning_rate_follows_a_cosine_to_five_percent_or_stays() -> None:
    cosine = WganConfig(schedule_steps=100)

    assert learning_rate_factor(0, cosine) == 1
    assert learning_rate_factor(50, cosine) == pytest.approx(0.525)
    assert learning_rate_factor(100, cosine) == learning_rate_factor(900, cosine) == pytest.approx(0.05)
    assert learning_rate_factor(900, WganConfig()) == 1


def test_one_cycle_rises_over_a_twentieth_of_the_steps_and_falls_to_next_to_nothing() -> None:
    config = LikelihoodConfig(schedule_steps=1000)
    factors = [learning_rate_factor(step, config) for step in range(1001)]

    assert factors[0] == pytest.approx(0.04)
    assert factors[50] == pytest.approx(1)
    assert factors == [*sorted(factors[:51]), *sorted(factors[51:], reverse=True)]
    assert factors[1000] == learning_rate_factor(5000, config) == pytest.approx(0.001)
    assert learning_rate_factor(3000, LikelihoodConfig()) == 1
