"""The gradient penalty in the step of the WGAN, and the adaptive critic."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from toy_events import toy_batch
from toy_tasks import CPU, make_wgan, saved, without_noise

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.wgan import losses
from workloads.muons.models.wgan.networks import WganNetworks


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


def test_the_gradient_penalty_is_computed_every_so_many_updates_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_wgan(gp_every=3, critic_steps=2)
    at = []
    penalty = task.networks.penalty
    monkeypatch.setattr(
        task.networks, "penalty", lambda *arguments: (at.append(task.critic_updates), penalty(*arguments))[1]
    )

    norms = [float(task.step(toy_batch(seed=seed))["gp_norm"]) for seed in range(4)]

    assert at == [0, 3, 6]
    assert norms[2] == norms[1]  # updates 4 and 5 have none: the latest is reported


def test_a_rarer_gradient_penalty_is_as_much_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    monkeypatch.setattr(losses, "critic_loss", lambda scores, *_: losses.ScoreLoss(0 * scores.sum(), torch.zeros(2)))

    every, rare = (
        make_wgan(gp_every=gp_every, critic_steps=1).step(toy_batch())["critic_grad_norm"] for gp_every in (1, 4)
    )

    assert every > 0
    torch.testing.assert_close(rare, 4 * every)


def test_the_adaptive_critic_acts_on_a_batch_before_it_is_trained_on_and_its_state_is_saved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    task = make_wgan(adaptive={"enabled": True, "every": 1, "max_critic_steps": 4})
    for seed in range(5):
        metrics = {name: float(value) for name, value in task.step(toy_batch(seed=seed)).items()}
        task.observed(metrics | {"held_out_gap": 1.0})
    task.step(toy_batch(seed=9))
    task.observed(metrics | {"held_out_gap": 0.1})
    task.observed(metrics | {"held_out_gap": 0.1})  # the same gap again: nothing to decide

    assert task.critic_steps == 4
    assert "critic_steps 3 -> 4" in caplog.text
    resumed = make_wgan(adaptive={"enabled": True, "every": 1, "max_critic_steps": 4})
    resumed.load_state_dict(saved(task))
    assert resumed.critic_steps == 4
    assert resumed.step(toy_batch(seed=10)) == task.step(toy_batch(seed=10))


def test_the_adaptive_critic_may_be_turned_off_between_a_measurement_and_its_check() -> None:
    task = make_wgan(adaptive={"enabled": True, "every": 1})
    task.step(toy_batch())
    resumed = make_wgan()
    resumed.load_state_dict(saved(task))

    metrics = {name: float(value) for name, value in resumed.step(toy_batch(seed=1)).items()}
    resumed.observed(metrics)

    assert resumed.critic_steps == 3


def test_a_rank_without_muons_takes_the_gap_of_the_others_and_nothing_else() -> None:
    def sum_with_others(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.add_(1.0)

    context = StepContext(CPU, 1, sum_over_ranks=sum_with_others)
    task = make_wgan(context, adaptive={"enabled": True, "every": 1})
    task.observe(toy_batch())

    metrics = task.step(Batch((), events_elsewhere=3, particles_elsewhere=9))

    assert metrics["held_out_gap"] == 1
    assert metrics["skipped_updates"] == 0
