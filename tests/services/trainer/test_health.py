"""What counts as healthy, a warning, critical."""

from __future__ import annotations

import math

import pytest

from common.errors import BadInputError
from services.config.health import HealthConfig
from services.config.root import load_config
from services.trainer.health.health import Health, HealthWatch, update_limits
from workloads.base.limits import Alarm, UpdateLimits

CONFIG = HealthConfig(median_steps=11, warning_grad_ratio=100, critical_grad_ratio=10_000)
NORMAL = {"c_loss": -3.0, "g_loss": 1.0, "m_loss": 2.0, "w_gap": 3.0, "critic_grad_norm": 20.0, "skipped_updates": 0.0}


def watch_after(num_steps: int, config: HealthConfig = CONFIG) -> HealthWatch:
    watch = HealthWatch(config)
    for step in range(1, num_steps + 1):
        assert watch.judge(step, NORMAL).health is Health.HEALTHY
    return watch


@pytest.mark.parametrize(
    ("metrics", "health", "reason"),
    [
        ({}, Health.HEALTHY, ""),
        ({"c_loss": -2e4}, Health.WARNING, "c_loss is 2e+04, above trainer.health.warning_loss = 10000"),
        ({"c_loss": -2e6}, Health.CRITICAL, "c_loss is 2e+06, above trainer.health.critical_loss = 1e+06"),
        ({"w_gap": 1e9}, Health.HEALTHY, ""),
        ({"w_gap": math.nan}, Health.CRITICAL, "w_gap is nan"),
        ({"m_loss": -math.inf}, Health.CRITICAL, "m_loss is -inf"),
        ({"critic_grad_norm": 2.5e5}, Health.CRITICAL, "over its median is 1.25e+04, above"),
        ({"critic_grad_norm": 2000.5}, Health.WARNING, "critic_grad_norm over its median is 100, above"),
        ({"critic_grad_norm": 1999.0}, Health.HEALTHY, ""),
        ({"critic_grad_norm": math.nan}, Health.CRITICAL, "critic_grad_norm is nan"),
        ({"generator_grad_norm": 2e5}, Health.WARNING, "above trainer.health.warning_grad_norm = 100000"),
        ({"generator_grad_norm": 2e7}, Health.CRITICAL, "above trainer.health.critical_grad_norm = 1e+07"),
        ({"skipped_updates": 2.0}, Health.CRITICAL, "2 update(s) left out"),
    ],
)
def test_a_step_is_judged_by_losses_gradients_and_updates_left_out(
    metrics: dict[str, float], health: Health, reason: str
) -> None:
    verdict = watch_after(11).judge(12, NORMAL | metrics)
    assert verdict.health is health
    assert reason in "; ".join(verdict.reasons)
    assert bool(verdict.reasons) == (health is not Health.HEALTHY)


def test_a_models_own_limits_are_warnings_that_name_the_metric() -> None:
    watch = HealthWatch(CONFIG, {"sameness": 0.3, "never_given": 0.0})
    assert watch.judge(1, NORMAL | {"sameness": 0.3}).health is Health.HEALTHY
    verdict = watch.judge(2, NORMAL | {"sameness": 0.31})
    assert verdict.health is Health.WARNING
    assert verdict.reasons == ("sameness is 0.31, above 0.3, the model's limit",)
    assert watch.judge(3, NORMAL | {"sameness": math.nan}).reasons == ("sameness is nan",)


def test_an_alarm_with_steps_warns_once_its_metric_is_beyond_for_so_many_in_a_row() -> None:
    alarm = Alarm(below=0.3, above=2.0, steps=3, meaning="the generator has collapsed", zero_is_nothing=True)
    watch = HealthWatch(CONFIG, {"spread": alarm})
    values = [0.1, 0.2, 0.3, 0.1, 2.5, 0.2, 0.0, 2.0, math.nan]
    verdicts = [watch.judge(step, {"spread": value}) for step, value in enumerate(values)]
    assert [verdict.health.label for verdict in verdicts] == [*["healthy"] * 5, "warning", *["healthy"] * 2, "critical"]
    assert verdicts[5].reasons == (
        "spread is 0.2, below 0.3 for 3 steps, the model's limit: the generator has collapsed",
    )


def test_a_series_beyond_an_alarm_goes_on_after_a_restart() -> None:
    alarms = {"spread": Alarm(below=0.3, steps=3)}
    watch, resumed = HealthWatch(CONFIG, alarms), HealthWatch(CONFIG, alarms)
    for step in (1, 2):
        assert watch.judge(step, {"spread": 0.1}).health is Health.HEALTHY
    resumed.load_state_dict(watch.state_dict())
    assert resumed.judge(3, {"spread": 0.1}).health is Health.WARNING
    old = watch.state_dict()
    del old["beyond"]
    resumed.load_state_dict(old)  # a checkpoint of an earlier version
    assert resumed.judge(3, {"spread": 0.1}).health is Health.HEALTHY


def test_gradients_are_compared_only_with_enough_of_them_and_only_if_they_are_large() -> None:
    new = HealthWatch(HealthConfig(median_steps=100, warning_grad_ratio=100))
    for step in range(1, 11):
        assert new.judge(step, {"a_grad_norm": 20.0 if step < 10 else 9e4}).health is Health.HEALTHY
    assert new.judge(11, {"a_grad_norm": 9e4}).health is Health.WARNING
    small = HealthWatch(CONFIG)
    for step in range(1, 20):
        assert small.judge(step, {"a_grad_norm": 1e-8 if step < 19 else 9.9}).health is Health.HEALTHY


def test_what_is_out_of_the_ordinary_does_not_become_the_measure() -> None:
    watch = watch_after(11)
    for step in range(12, 100):
        assert watch.judge(step, NORMAL | {"critic_grad_norm": 4e3}).health is Health.WARNING


def test_a_limit_of_zero_is_off_and_no_number_passes_that_is_not_finite() -> None:
    off = {name: 0 for name in HealthConfig.model_fields if name.startswith(("warning", "critical"))}
    config = HealthConfig(**off)  # type: ignore[arg-type]
    watch = HealthWatch(config)
    for step in range(300):
        assert watch.judge(step, {"c_loss": 1e30, "a_grad_norm": 10.0**step}).health is Health.HEALTHY
    assert watch.judge(300, {"skipped_updates": 5.0}).health is Health.WARNING
    assert watch.judge(301, {"c_loss": math.nan}).health is Health.CRITICAL
    assert update_limits(config) == UpdateLimits(math.inf, math.inf)
    assert update_limits(HealthConfig()) == UpdateLimits(1e6, 1e7)


def test_going_back_is_counted_until_training_has_recovered() -> None:
    watch = HealthWatch(HealthConfig(rollbacks=2, recovered_steps=100))
    for step in (50, 60):
        assert watch.may_roll_back
        watch.judge(step, {"c_loss": math.nan})
        watch.rolled_back(40)
    assert not watch.may_roll_back
    watch.judge(139, {})
    assert not watch.may_roll_back
    watch.judge(140, {})
    assert watch.rollbacks == 0


def test_a_watch_goes_on_where_its_checkpoint_was() -> None:
    watch = watch_after(11)
    watch.rolled_back(3)
    other = HealthWatch(CONFIG)
    other.load_state_dict(watch.state_dict())
    assert other.state_dict() == watch.state_dict()
    assert other.judge(12, {"critic_grad_norm": 4e3}).health is Health.WARNING


def test_a_warning_that_would_come_after_the_critical_limit_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInputError, match=r"warning_loss = 10000 must not be above critical_loss = 100"):
        load_config(tmp_path, assignments=["trainer.health.critical_loss=100"], environment={})
