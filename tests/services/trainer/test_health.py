"""What counts as healthy, a warning, critical."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from common.locks import OutdatedAttemptError, begin_attempt
from services.trainer import health as watching
from workloads.base.batch import Batch, Microbatch
from workloads.base.training import Alarm

LIMITS = watching.HealthLimits(median_steps=11, warning_grad_ratio=100, critical_grad_ratio=10_000)


NORMAL = {"c_loss": -3.0, "g_loss": 1.0, "m_loss": 2.0, "w_gap": 3.0, "critic_grad_norm": 20.0, "skipped_updates": 0.0}


def watch_after(num_steps: int, limits: watching.HealthLimits = LIMITS) -> watching.HealthWatch:
    watch = watching.HealthWatch(limits=limits)
    for step in range(1, num_steps + 1):
        assert watch.judge(step, NORMAL).health is watching.Health.HEALTHY
    return watch


@pytest.mark.parametrize(
    ("metrics", "health", "reason"),
    [
        ({}, watching.Health.HEALTHY, ""),
        ({"c_loss": -2e4}, watching.Health.WARNING, "c_loss is 2e+04, above the warning limit of 10000"),
        ({"c_loss": -2e6}, watching.Health.CRITICAL, "c_loss is 2e+06, above the critical limit of 1e+06"),
        ({"w_gap": 1e9}, watching.Health.HEALTHY, ""),
        ({"w_gap": math.nan}, watching.Health.CRITICAL, "w_gap is nan"),
        ({"m_loss": -math.inf}, watching.Health.CRITICAL, "m_loss is -inf"),
        ({"critic_grad_norm": 2.5e5}, watching.Health.CRITICAL, "over its median is 1.25e+04, above"),
        ({"critic_grad_norm": 2000.5}, watching.Health.WARNING, "critic_grad_norm over its median is 100, above"),
        ({"critic_grad_norm": 1999.0}, watching.Health.HEALTHY, ""),
        ({"critic_grad_norm": math.nan}, watching.Health.CRITICAL, "critic_grad_norm is nan"),
        ({"generator_grad_norm": 2e5}, watching.Health.WARNING, "above the warning limit of 100000"),
        ({"generator_grad_norm": 2e7}, watching.Health.CRITICAL, "above the critical limit of 1e+07"),
        ({"skipped_updates": 2.0}, watching.Health.CRITICAL, "2 update(s) left out"),
    ],
)
def test_a_step_is_judged_by_losses_gradients_and_updates_left_out(
    metrics: dict[str, float], health: watching.Health, reason: str
) -> None:
    verdict = watch_after(11).judge(12, NORMAL | metrics)
    assert verdict.health is health
    assert reason in "; ".join(verdict.reasons)
    assert bool(verdict.reasons) == (health is not watching.Health.HEALTHY)


def test_a_models_own_limits_are_warnings_that_name_the_metric() -> None:
    watch = watching.HealthWatch({"sameness": 0.3, "never_given": 0.0})
    assert watch.judge(1, NORMAL | {"sameness": 0.3}).health is watching.Health.HEALTHY
    verdict = watch.judge(2, NORMAL | {"sameness": 0.31})
    assert verdict.health is watching.Health.WARNING
    assert verdict.reasons == ("sameness is 0.31, above 0.3, the model's limit",)
    assert watch.judge(3, NORMAL | {"sameness": math.nan}).reasons == ("sameness is nan",)


def test_an_alarm_with_steps_warns_once_its_metric_is_beyond_for_so_many_in_a_row() -> None:
    alarm = Alarm(below=0.3, above=2.0, steps=3, meaning="the generator has collapsed", zero_is_nothing=True)
    watch = watching.HealthWatch({"spread": alarm})
    values = [0.1, 0.2, 0.3, 0.1, 2.5, 0.2, 0.0, 2.0, math.nan]
    verdicts = [watch.judge(step, {"spread": value}) for step, value in enumerate(values)]
    assert [verdict.health.label for verdict in verdicts] == [*["healthy"] * 5, "warning", *["healthy"] * 2, "critical"]
    assert verdicts[5].reasons == (
        "spread is 0.2, below 0.3 for 3 steps, the model's limit: the generator has collapsed",
    )


def test_a_series_beyond_an_alarm_goes_on_after_a_restart() -> None:
    alarms = {"spread": Alarm(below=0.3, steps=3)}
    watch, resumed = watching.HealthWatch(alarms), watching.HealthWatch(alarms)
    for step in (1, 2):
        assert watch.judge(step, {"spread": 0.1}).health is watching.Health.HEALTHY
    resumed.load_state_dict(watch.state_dict())
    assert resumed.judge(3, {"spread": 0.1}).health is watching.Health.WARNING


def test_gradients_are_compared_only_with_enough_of_them_and_only_if_they_are_large() -> None:
    new = watching.HealthWatch(limits=watching.HealthLimits(median_steps=100, warning_grad_ratio=100))
    for step in range(1, 11):
        assert new.judge(step, {"a_grad_norm": 20.0 if step < 10 else 9e4}).health is watching.Health.HEALTHY
    assert new.judge(11, {"a_grad_norm": 9e4}).health is watching.Health.WARNING
    small = watching.HealthWatch(limits=LIMITS)
    for step in range(1, 20):
        assert small.judge(step, {"a_grad_norm": 1e-8 if step < 19 else 9.9}).health is watching.Health.HEALTHY


def test_what_is_out_of_the_ordinary_does_not_become_the_measure() -> None:
    watch = watch_after(11)
    for step in range(12, 100):
        assert watch.judge(step, NORMAL | {"critic_grad_norm": 4e3}).health is watching.Health.WARNING


def test_going_back_is_counted_until_training_has_recovered() -> None:
    watch = watching.HealthWatch(limits=watching.HealthLimits(rollbacks=2, recovered_steps=100))
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
    other = watching.HealthWatch(limits=LIMITS)
    other.load_state_dict(watch.state_dict())
    assert other.state_dict() == watch.state_dict()
    assert other.judge(12, {"critic_grad_norm": 4e3}).health is watching.Health.WARNING


def test_critical_steps_come_with_their_metrics_and_the_places_of_their_microbatches(tmp_path: Path) -> None:
    nothing = torch.zeros(0)
    parts = (Microbatch(1, unit, 2, nothing, nothing.numpy(), {}, {}, 3, 4, shard=unit % 2) for unit in (4, 5))
    guard = watching.Guard(watching.HealthWatch(), watching.HealthLog(tmp_path / "health.jsonl"))
    loss = torch.tensor(math.nan)
    guard.note(7, Batch(tuple(parts)), {"a_loss": loss, "skipped_updates": torch.tensor(3)})
    loss.zero_()  # a graph may write into the same place again
    guard.note(8, Batch(()), {})
    with pytest.raises(watching.Unhealthy, match="step 7: ") as error:
        guard.look()
    ((taken, verdict),) = error.value.faults
    assert taken.places == (watching.Place(0, 1, 4, 2), watching.Place(1, 1, 5, 2))
    assert math.isnan(taken.metrics["a_loss"])
    assert verdict.health is watching.Health.CRITICAL
    guard.look()  # nothing new
    guard.note(9, Batch(()), {"a_loss": torch.tensor(math.nan)})
    guard.begin_again()
    guard.look()


STEP = watching.TakenStep(7, (watching.Place(0, 1, 2, 3),), {"c_loss": float("nan")})


VERDICT = watching.Verdict(watching.Health.CRITICAL, ("c_loss is nan",))


def test_a_trainer_of_an_older_attempt_adds_no_line(tmp_path: Path) -> None:
    older, newer = (watching.HealthLog(tmp_path / "health.jsonl", begin_attempt(tmp_path).publishing) for _ in range(2))
    with pytest.raises(OutdatedAttemptError):
        older.write(STEP, VERDICT, "of the older")
    newer.write(STEP, VERDICT, "went back")
    (line,) = (tmp_path / "health.jsonl").read_text().splitlines()
    assert json.loads(line)["action"] == "went back"
