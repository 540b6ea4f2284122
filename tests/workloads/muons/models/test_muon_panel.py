"""The panel looks at a model, and leaves it and its training as they were."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_events import make_microbatch, on, split, toy_batch
from toy_tasks import SMALL, changed, make_wgan, weights

from services.config.root import Config
from services.trainer.ranks import Ranks
from services.trainer.service import step_context, training_of
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.training import Evaluation
from workloads.muons.metrics.panel import W1_FEATURES
from workloads.muons.models.likelihood import LikelihoodPanel, LikelihoodTask
from workloads.muons.models.panel import FIGURE, Bundles, MuonPanel
from workloads.muons.models.wgan import WganPanel, WganTask

CPU = torch.device("cpu")


@pytest.mark.parametrize(("model", "panel"), [("likelihood", LikelihoodPanel), ("wgan", WganPanel)])
def test_the_configuration_names_the_model(model: str, panel: type) -> None:
    trainer: dict[str, Any] = {"model": model, "likelihood": {"network": SMALL.model_dump()}}
    config = Config.model_validate({"trainer": trainer})
    task = training_of(config).task(config.trainer.of_model, step_context(config, CPU, Ranks.alone()))
    assert isinstance(task, LikelihoodTask) == (model == "likelihood")
    assert type(training_of(config).evaluator(task, config.seed)) is panel
    assert training_of(config).headline in task.step(toy_batch())


HELD_OUT = {"train/held_out_m_loss", "train/held_out_nll", "train/held_out_w_gap"}
METRICS = ("count_tv", *(f"{name}_w1" for name in W1_FEATURES))
HISTOGRAMS = (
    *("log10_count", "log10_energy", "log10_radius"),
    *("log10_bundle_energy", "log10_leading_energy", "weighted_radius_m"),
)


@pytest.fixture(scope="module")
def block() -> Batch:
    return split(toy_batch(600, seed=5), [400, 150, 50])


def trained(steps: int) -> WganTask:
    task = make_wgan(critic_steps=1)
    for seed in range(steps):
        task.step(toy_batch(32, seed))
    return task


def evaluated(task: WganTask, block: Batch) -> Evaluation:
    found = WganPanel(task, seed=3).evaluate(block)
    assert found is not None
    return found


@pytest.mark.slow
def test_it_tells_every_distance_with_its_floor_histograms_and_a_picture(block: Batch) -> None:
    assert "panel/score" not in evaluated(trained(1), block).scalars, "not of the generator yet"
    task = trained(2)
    random = torch.get_rng_state()
    networks = task.networks.modules().values()
    before = [weights(network) for network in networks]
    found = evaluated(task, block)
    assert evaluated(task, block).scalars == found.scalars
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(changed(old, network) for old, network in zip(before, networks, strict=True))
    expected = {f"panel/{name}{suffix}" for name in METRICS for suffix in ("", "_floor")}
    assert found.scalars.keys() == expected | HELD_OUT | {"panel/score", "panel/muons_not_finite"}
    assert all(math.isfinite(value) for value in found.scalars.values())
    ratios = [found.scalars[f"panel/{name}"] / found.scalars[f"panel/{name}_floor"] for name in METRICS]
    assert found.scalars["panel/score"] == pytest.approx(np.mean(ratios))
    assert found.histograms.keys() == {f"hist/{of}/{name}" for of in ("real", "generated") for name in HISTOGRAMS}
    for name in HISTOGRAMS:
        real, generated = found.histograms[f"hist/real/{name}"], found.histograms[f"hist/generated/{name}"]
        assert np.array_equal(real.edges, generated.edges)
    assert found.histograms["hist/real/log10_count"].counts.sum() == 600
    assert found.histograms["hist/generated/log10_count"].counts.sum() == 600
    assert found.histograms["hist/real/log10_energy"].counts.sum() == block.num_particles
    assert found.images[FIGURE].dtype == np.uint8
    assert found.images[FIGURE].shape[2] == 3
    assert len(np.unique(found.images[FIGURE].reshape(-1, 3), axis=0)) > 10, "something is drawn"


def test_there_is_nothing_to_evaluate_before_the_first_muons(block: Batch) -> None:
    assert MuonPanel(make_wgan(), seed=0).evaluate(block) is None


def test_a_block_without_muons_has_a_count_distance_only() -> None:
    primary = toy_batch(40).microbatches[0].event_columns["primary"]
    empty = Batch((make_microbatch(primary, torch.zeros(40, dtype=torch.int64), torch.zeros(0, 3)),))
    found = evaluated(trained(2), empty)
    assert {name for name in found.scalars if name.startswith("panel/")} == {
        *("panel/count_tv", "panel/count_tv_floor", "panel/score", "panel/muons_not_finite")
    }
    assert set(found.histograms) == {"hist/real/log10_count", "hist/generated/log10_count"}


def test_a_count_head_that_has_diverged_costs_the_panel_and_not_the_memory(
    block: Batch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = trained(1)
    calls = 0

    def too_many(primary_E4: Tensor) -> Bundles:
        nonlocal calls
        calls += 1
        counts_E = torch.full((len(primary_E4),), 5_000)
        return Bundles(counts_E, torch.ones(5_000 * len(primary_E4), 3))

    monkeypatch.setattr(task, "generate", too_many)
    found = evaluated(task, block)
    assert found.scalars.keys() == HELD_OUT
    assert calls == 1
    assert "no panel: more than" in caplog.text


@pytest.mark.slow
def test_muons_that_are_not_finite_are_told(block: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    task = trained(1)

    def bad(primary_E4: Tensor) -> Bundles:
        muons = torch.ones(len(primary_E4), 3)
        muons[:2, 0] = torch.tensor([math.nan, math.inf])
        return Bundles(torch.ones(len(primary_E4), dtype=torch.int64), muons)

    monkeypatch.setattr(task, "generate", bad)
    assert evaluated(task, block).scalars["panel/muons_not_finite"] == 6.0  # three calls


def test_settings_are_what_may_change_while_training() -> None:
    task = make_wgan(schedule_steps=100, generator_lr=1e-4, critic_lr=2e-4)
    task.steps = 100
    task.step(toy_batch())
    assert MuonPanel(task, 0).settings() == {"lr_generator": pytest.approx(5e-6), "lr_critic": pytest.approx(1e-5)}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_cuda_random_numbers_go_on_as_if_there_were_no_panel(block: Batch) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    task = WganTask(make_wgan().config, StepContext(device, 1))
    task.step(on(device, toy_batch()))
    torch.manual_seed(2)
    expected = torch.rand(4, device=device), torch.rand(4)
    torch.manual_seed(2)
    assert MuonPanel(task, seed=3).evaluate(on(device, block)) is not None
    assert torch.equal(torch.rand(4, device=device), expected[0])
    assert torch.equal(torch.rand(4), expected[1])
