"""A muon model seen from outside: panel, mean of the headline metric, the model that the configuration names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from toy_events import split, toy_batch
from toy_tasks import SMALL_LIKELIHOOD, changed, make_likelihood, weights

from icestream.cli import cli
from services.config.root import Config
from services.trainer.ranks.ranks import Ranks
from services.trainer.service import step_context, training_of
from services.trainer.state import TrainState
from workloads.muons.models.likelihood.panel import LikelihoodPanel
from workloads.muons.models.likelihood.task import LikelihoodTask
from workloads.muons.models.wgan.panel import WganPanel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_panel_tells_distances_and_held_out_losses_and_changes_nothing() -> None:
    task = make_likelihood()
    block = split(toy_batch(300, seed=5), [200, 100])
    panel = LikelihoodPanel(task, seed=3)
    assert panel.evaluate(block) is None, "nothing was trained on yet"
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    before, random = weights(task.networks.muons), torch.get_rng_state()

    first, second = panel.evaluate(block), panel.evaluate(block)

    assert first is not None
    assert second is not None
    assert first.scalars == second.scalars
    assert {"train/held_out_m_loss", "train/held_out_nll", "panel/score"} <= first.scalars.keys()
    assert all(math.isfinite(value) for value in first.scalars.values())
    assert panel.settings().keys() == {"lr_count", "lr_muons"}
    assert not changed(before, task.networks.muons)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_mean_over_the_last_steps_is_that_of_the_models_own_metric() -> None:
    task = make_likelihood()
    state = TrainState(task, CPU, "plan", headline="muon_nll")
    losses = []
    for seed in range(3):
        metrics = task.step(toy_batch(seed=seed))
        state.recent.add(metrics[state.headline])
        losses.append(float(metrics["muon_nll"]))
    resumed = TrainState(make_likelihood(), CPU, "plan", headline="muon_nll")
    resumed.restore(state.checkpoint("{}"), accept_new_plan=False)
    for one in (state, resumed):
        ((name, mean),) = one.recent_mean().items()
        assert name == "muon_nll_ma_500"
        assert float(mean) == pytest.approx(sum(losses) / 3)


@pytest.mark.parametrize(("model", "panel"), [("likelihood", LikelihoodPanel), ("wgan", WganPanel)])
def test_the_configuration_names_the_model(model: str, panel: type) -> None:
    trainer: dict[str, Any] = {"model": model, "likelihood": {"network": SMALL_LIKELIHOOD.model_dump()}}
    config = Config.model_validate({"trainer": trainer})
    task = training_of(config).task(config.trainer.of_model, step_context(config, CPU, Ranks.alone()))
    assert isinstance(task, LikelihoodTask) == (model == "likelihood")
    assert type(training_of(config).evaluator(task, config.seed)) is panel
    assert training_of(config).headline in task.step(toy_batch())


def test_bench_trainer_measures_the_likelihood_model() -> None:
    small = [f"--set=trainer.likelihood.network.{name}=8" for name in ("hidden", "count_hidden")]
    arguments = ["bench", "trainer", "--model", "likelihood", "--batches=2", "--events=32", "--seconds=0", *small]
    done = CliRunner().invoke(cli, [*arguments, "--device=cpu"])
    assert done.exit_code == 0, done.output
    assert "replay ceiling on cpu" in done.output
