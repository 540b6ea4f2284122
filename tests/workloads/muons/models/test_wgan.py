"""The training step of the WGAN, its metrics and alarms, and the events that it generates.

What all models share: test_muon_tasks.py.
"""

from __future__ import annotations

import logging
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import CPU, SMALL, begun, make_likelihood, make_sgd_wgan, make_wgan, same, weights, without_noise

from common.errors import BadInputError
from services.trainer.health import Health, HealthLimits, HealthWatch
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.base.training import Alarm
from workloads.muons.models import likelihood_densities, wgan
from workloads.muons.models.config import WganConfig
from workloads.muons.models.likelihood_densities import NUM_KNOWN
from workloads.muons.models.standardise import NUM_CONDITIONS
from workloads.muons.models.wgan import ALARMS, WganTask
from workloads.muons.models.wgan_losses import ScoreLoss


def test_the_first_steps_are_the_likelihood_models_which_then_stays() -> None:
    task, likelihood = make_wgan(likelihood_steps=2), make_likelihood(schedule_steps=2)
    for seed in range(4):
        metrics = task.step(toy_batch(seed=seed))
        if seed < 2:
            expected = likelihood.step(toy_batch(seed=seed))
            assert {name: metrics[name] for name in expected} == expected
        trained = likelihood.networks.modules()
        assert all(
            same(weights(trained[name]), weights(one)) for name, one in task.likelihood.networks.modules().items()
        )
    assert (task.generator_updates, task.critic_updates) == (2, 6)


@without_noise()
@pytest.mark.parametrize(("shards", "chunk_particles"), [(1, 10), (2, 0)])
def test_three_microbatches_make_the_step_that_one_microbatch_of_their_events_makes(
    shards: int, chunk_particles: int
) -> None:
    whole, parts = begun(make_sgd_wgan()), begun(make_sgd_wgan(chunk_particles=chunk_particles))
    batch = toy_batch(30)

    expected = whole.step(batch)
    three = enumerate(split(batch, [5, 14, 11]).microbatches)
    found = parts.step(Batch(tuple(replace(one, shard=index % shards, number=index) for index, one in three)))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for name in ("critic", "correction"):
        for old, new in zip(
            weights(getattr(whole.networks, name)), weights(getattr(parts.networks, name)), strict=True
        ):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


@without_noise()
def test_empty_events_change_nothing_for_critic_and_generator() -> None:
    (full,) = toy_batch(4, counts=[2, 1, 3, 2]).microbatches
    primary = full.event_columns["primary"]
    padded = make_microbatch(
        torch.cat([primary[:2], primary[:1] * 0.5, primary[2:], primary[:1] * 2]),
        torch.tensor([2, 1, 0, 3, 2, 0]),
        full.particle_columns["muons"],
    )
    without, with_empty = begun(make_sgd_wgan()), begun(make_sgd_wgan())  # Adam makes steps of rounding errors

    expected = without.step(Batch((full,)))
    found = with_empty.step(Batch((padded,)))

    for name in ("c_loss", "g_loss", "w_gap", "gp_norm", "critic_grad_norm", "generator_grad_norm"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
@pytest.mark.parametrize("bf16", [False, True])
def test_compiled_networks_are_one_graph_each_with_the_same_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, bf16: bool
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # graphs, without their C++
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(1)
    context = StepContext(CPU, 1, bf16=bf16)
    plain, compiled = (make_wgan(context, compile=compile).networks for compile in (False, True))
    compiled.is_compiled = True

    for num_events in (63, 41):
        counts_E = torch.arange(num_events) % 7
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        conditions_EC, features_PF = torch.randn(num_events, NUM_CONDITIONS), torch.randn(segments.num_particles, 2)
        inputs_EI = torch.randn(num_events, NUM_KNOWN + 2)
        results = []
        for networks in (plain, compiled):
            values = (
                networks._correct(inputs_EI, features_PF, segments),
                networks.raw_scores(features_PF, conditions_EC, segments),
                networks._slope(features_PF, conditions_EC, segments),
            )
            loss = sum((one.square().sum() for one in values), torch.zeros(()))
            weights = [*networks.correction.parameters(), *networks.critic.parameters()]
            gradients = [one.flatten() for one in torch.autograd.grad(loss, weights)]
            results.append((*values, torch.cat(gradients)))
        for expected, found in zip(*results, strict=True):
            # Compiled layers are differentiated in other operators, whose rows in between aren't rounded.
            assert float((found - expected).norm()) <= (0.05 if bf16 else 1e-5) * float(expected.norm())
    assert counters["stats"]["unique_graphs"] == 3, "for any number of events"


@pytest.mark.engine
@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
def test_a_compiled_training_compiles_once_and_the_next_takes_it_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO)
    batches = [toy_batch(num, seed=num) for num in (5, 97, 40, 1, 123, 41, 64, 2, 90, 7, 55, 120, 33)]
    trainings: list[list[dict[str, Tensor]]] = []
    for compile in (False, True, True):
        torch.compiler.reset()
        counters.clear()
        task, graphs = make_wgan(compile=compile, likelihood_steps=0), []
        trainings.append([])
        for batch in batches:
            trainings[-1].append(task.step(batch))
            graphs.append(counters["stats"]["unique_graphs"])
        assert graphs == [0] + [4 * compile] * (len(batches) - 1), "for any batch but the first: too small"
    plain, compiled, again = trainings
    assert compiled == again
    assert (counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]) == (4, 0)
    for name in ("c_loss", "g_loss", "w_gap", "gp_norm", "energy_score", "critic_grad_norm", "generator_grad_norm"):
        torch.testing.assert_close(compiled[1][name], plain[1][name], rtol=1e-5, atol=1e-6, msg=name)
    assert [text.split()[0] for text in caplog.messages if "compil" in text] == ["compiling", "compiled"] * 2


def test_compiling_without_a_compiler_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(BadInputError, match=r"C\+\+ compiler.*compile = false"):
        make_wgan(compile=True)


def test_the_gradient_penalty_is_computed_every_so_many_updates_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WganConfig, "gp_every", 3)
    task = begun(make_wgan(critic_steps=2))
    at = []
    penalty = task.networks.penalty
    monkeypatch.setattr(
        task.networks, "penalty", lambda *arguments: (at.append(task.critic_updates), penalty(*arguments))[1]
    )

    norms = [float(task.step(toy_batch(seed=seed))["gp_norm"]) for seed in range(4)]

    assert at == [0, 3, 6]
    assert norms[2] == norms[1]  # updates 4 and 5 have none: the latest is reported


@without_noise()
def test_a_rarer_gradient_penalty_is_as_much_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgan, "score_loss", lambda scores, *_: ScoreLoss(0 * scores.sum(), torch.zeros(2)))

    norms = []
    for gp_every in (1, 4):
        monkeypatch.setattr(WganConfig, "gp_every", gp_every)
        norms.append(begun(make_wgan(critic_steps=1)).step(toy_batch())["critic_grad_norm"])
    every, rare = norms

    assert every > 0
    torch.testing.assert_close(rare, 4 * every)


NO_LIMITS = HealthLimits(*[math.inf] * 6)


QUICK = {name: replace(one, steps=one.steps // 6) for name, one in ALARMS.items() if isinstance(one, Alarm)}
"""The model's limits, judged after a sixth of the steps."""


def warnings_of(task: WganTask, steps: int) -> set[str]:
    """Metrics that were warned about."""
    watch = HealthWatch(QUICK, NO_LIMITS)
    found: set[str] = set()
    for step in range(1, steps + 1):
        metrics = {name: float(value) for name, value in task.step(toy_batch(seed=step)).items()}
        found |= {reason.split()[0] for reason in watch.judge(step, metrics).reasons}
    return found


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({"generator_lr": 1e-2, "critic_lr": 1e-2}, 36, set()),
        # Scores at their bound, where gradients vanish.
        ({"penalty_weight": 0, "critic_lr": 2.0, "energy_score_weight": 0}, 18, {"saturation"}),
        # Far from the slope that the penalty asks for.
        ({"critic_lr": 0.01, "penalty_weight": 1e-3, "critic_steps": 10}, 60, {"gp_norm"}),
    ],
    ids=["normal", "saturated", "steep"],
)
def test_a_training_that_goes_wrong_is_warned_about_and_a_normal_one_is_not(
    settings: dict[str, float], steps: int, expected: set[str]
) -> None:
    assert warnings_of(begun(make_wgan(**settings)), steps) == expected


def test_a_batch_without_muons_breaks_no_series_and_gives_no_warning() -> None:
    task, watch = begun(make_wgan()), HealthWatch(ALARMS, NO_LIMITS)
    task.step(toy_batch())
    hollow = toy_batch(2, counts=[0, 0])
    verdicts = [watch.judge(step, {k: float(v) for k, v in task.step(hollow).items()}) for step in range(1, 10)]
    assert {verdict.health for verdict in verdicts} == {Health.HEALTHY}


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_generated_events_have_as_many_muons_as_their_counts_say_and_no_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, azimuth: str
) -> None:
    task = make_wgan(network={**SMALL.model_dump(), "azimuth": azimuth})
    task.step(toy_batch(counts=[3] * 32))
    primary_E4 = toy_batch(64).microbatches[0].event_columns["primary"]

    bundles = task.generate(primary_E4)

    assert bundles.counts_E.shape == (64,)
    assert bundles.muons_P3.shape == (int(bundles.counts_E.sum()), 3)
    assert bundles.muons_P3.isfinite().all()
    assert (bundles.muons_P3[:, 0] > 0).all()

    monkeypatch.setattr(likelihood_densities, "MAX_COUNT", 2)
    with torch.no_grad():
        task.likelihood.networks.averaged_count_head.average.output.bias.fill_(4.0)
    bundles = task.generate(primary_E4)
    assert bundles.counts_E.max() == 2
