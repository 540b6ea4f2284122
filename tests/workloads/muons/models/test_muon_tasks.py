"""Promises that the steps of both muon models keep: what is trained when, threads, memory, checkpoints."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import CPU, MAKE, begun, changed, finite, same, saved, weights

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.likelihood_densities import MuonSampler
from workloads.muons.models.wgan import WganTask

MODELS = pytest.mark.parametrize("model", MAKE)
LOSS = {"wgan": "c_loss", "likelihood": "muon_nll"}


def of_muons(task: WganTask | LikelihoodTask) -> list[Tensor]:
    """Weights of the networks that learn from muons, as copies."""
    networks = task.networks.modules()
    others = {"count_head", "count_head_average", "standardise"}
    return [one for name in sorted(networks.keys() - others) for one in weights(networks[name])]


@MODELS
def test_a_step_changes_all_networks_and_returns_finite_metrics(model: str) -> None:
    task = begun(MAKE[model]())
    fixed = {"standardise"} | (task.likelihood.networks.modules().keys() if isinstance(task, WganTask) else set())
    networks = [network for name, network in task.networks.modules().items() if name not in fixed]
    before = [weights(network) for network in networks]

    metrics = task.step(toy_batch())

    assert all(changed(old, network) for old, network in zip(before, networks, strict=True))
    assert metrics.keys() == set(task.METRICS)
    assert finite(metrics)
    assert metrics["skipped_updates"] == 0
    assert all(metrics[f"{name}_grad_norm"] > 0 for name in task.optimisers)
    if isinstance(task, WganTask):
        assert (task.steps, task.generator_updates, task.critic_updates) == (2, 1, 3)


@MODELS
def test_a_batch_of_empty_events_trains_the_count_head_at_most(model: str) -> None:
    task = begun(MAKE[model]())
    task.step(toy_batch())
    before, count_head = of_muons(task), weights(task.networks.modules()["count_head"])

    metrics = task.step(toy_batch(3, counts=[0, 0, 0]))

    assert same(before, of_muons(task))
    assert same(count_head, weights(task.networks.modules()["count_head"])) == (model == "wgan")
    assert (metrics["m_loss"] > 0) == (model == "likelihood")
    assert all(metrics[name] == 0 for name in metrics.keys() & {"c_loss", "g_loss", "w_gap", "muon_nll", "kl"})


@MODELS
@pytest.mark.parametrize("counts", [[0, 0], [0, 1]])
def test_until_two_muons_were_seen_only_the_count_head_is_trained(model: str, counts: list[int]) -> None:
    task = MAKE[model]()
    before, count_head = of_muons(task), weights(task.networks.modules()["count_head"])

    metrics = task.step(toy_batch(2, counts=counts))

    assert same(before, of_muons(task))
    assert changed(count_head, task.networks.modules()["count_head"])
    assert finite(metrics)
    assert not task.is_fitted
    with pytest.raises(RuntimeError, match="not fitted"):
        task.generate(torch.ones(1, 4))
    task.step(toy_batch())
    assert task.is_fitted
    assert not same(before, of_muons(task))


@MODELS
def test_empty_microbatches_and_batches_without_events_do_no_harm(model: str) -> None:
    task = begun(MAKE[model]())
    nothing = make_microbatch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    (some,) = toy_batch().microbatches
    (hollow,) = toy_batch(2, counts=[0, 0]).microbatches
    begin = task.steps

    assert all(value == 0 for value in task.step(Batch((nothing,))).values())
    metrics = task.step(Batch((nothing, hollow, some)))

    assert finite(metrics)
    assert metrics["skipped_updates"] == 0
    assert all(value.isfinite().all() for value in of_muons(task))
    before, count_head = of_muons(task), weights(task.networks.modules()["count_head"])
    task.step(Batch(()))
    assert task.steps == begin + 3
    assert same(before, of_muons(task))
    assert not changed(count_head, task.networks.modules()["count_head"])


@MODELS
def test_the_standardisation_is_fitted_to_the_first_batch_and_then_kept(model: str) -> None:
    task = MAKE[model]()

    assert task.observe(split(toy_batch(), [8, 24]))
    mean = task.networks.standardise.feature_mean_F.clone()
    assert not task.observe(toy_batch(seed=9))

    assert torch.equal(task.networks.standardise.feature_mean_F, mean)
    (whole,) = toy_batch().microbatches
    features = task.networks.standardise.features(whole.particle_columns["muons"])
    torch.testing.assert_close(features.mean(0), torch.zeros(2), atol=1e-5, rtol=0)


@MODELS
def test_weights_and_noise_depend_on_the_seed_alone_and_the_caller_keeps_its_random_numbers(model: str) -> None:
    state = torch.get_rng_state()
    first, second = MAKE[model](), MAKE[model]()
    assert torch.equal(torch.get_rng_state(), state)
    other = MAKE[model](StepContext(CPU, seed=2))

    assert same(of_muons(first), of_muons(second))
    assert not same(of_muons(first), of_muons(other))
    trained = {"count_head", "muons"} | ({"critic", "correction"} if model == "wgan" else set())
    networks = second.networks.modules()
    assert second.num_parameters == sum(one.numel() for name in trained for one in networks[name].parameters())

    first, second, other = (begun(MAKE[model](StepContext(CPU, seed))) for seed in (1, 1, 2))
    other.load_weights(first.state_dict())
    expected = first.step(toy_batch())
    assert expected == second.step(toy_batch())
    assert other.step(toy_batch())[LOSS[model]] != expected[LOSS[model]], "the same weights, other noise"


@MODELS
@pytest.mark.parametrize("bf16", [False, True])
def test_parts_that_are_computed_at_once_give_the_step_of_one_after_the_other(model: str, bf16: bool) -> None:
    one, four = (
        begun(MAKE[model](StepContext(CPU, 1, bf16=bf16, threads=threads), chunk_particles=8)) for threads in (1, 4)
    )

    for seed in range(2):
        assert one.step(toy_batch(12, seed)) == four.step(toy_batch(12, seed))
    assert same(of_muons(one), of_muons(four))


# ---- Checkpoints.


@pytest.mark.parametrize(("model", "settings"), [("wgan", {}), ("wgan", {"likelihood_steps": 5}), ("likelihood", {})])
@pytest.mark.parametrize("bf16", [False, True])
def test_training_goes_on_bit_for_bit_from_a_saved_state(model: str, settings: dict[str, Any], bf16: bool) -> None:
    context = StepContext(CPU, 1, bf16=bf16)
    task, resumed = (MAKE[model](context, **settings, schedule_steps=20) for _ in range(2))
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    task.scale_learning_rates(0.5)
    resumed.load_state_dict(saved(task))

    metrics = []
    for trained in (task, resumed):
        torch.rand(3)  # nobody else's random numbers matter
        metrics.append([trained.step(toy_batch(seed=seed)) for seed in range(3, 6)])

    assert metrics[0] == metrics[1]
    assert task.learning_rates() == resumed.learning_rates()
    first, second = saved(task), saved(resumed)
    assert first["counters"] == second["counters"]
    assert first["counters"]["steps"] == 6
    if model == "wgan":
        assert first["counters"]["critic_updates"] == (6 - settings.get("likelihood_steps", 1)) * 3
    for network, state in first["networks"].items():
        for name, value in state.items():
            assert torch.equal(value, second["networks"][network][name]), f"{network}.{name}"


@MODELS
def test_a_state_saved_before_anything_was_fitted_can_be_loaded(model: str) -> None:
    fresh, resumed = MAKE[model](), MAKE[model]()

    resumed.load_state_dict(saved(fresh))
    resumed.step(toy_batch())

    assert resumed.networks.standardise.has_features


KEYS = {"wgan": "41040093d417a7da", "likelihood": "05399a6364381443"}


@MODELS
def test_the_keys_and_shapes_of_a_checkpoint_are_those_of_the_files_that_users_have(model: str) -> None:
    """Another digest means that no file of before can be loaded: the changelog must say so."""
    task = MAKE[model]()
    task.step(toy_batch())
    lines = [
        *sorted(saved(task)),
        *(
            f"{network}.{key} {tuple(value.shape)}"
            for network, state in sorted(saved(task)["networks"].items())
            for key, value in sorted(state.items())
        ),
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == KEYS[model], lines


def test_more_steps_of_the_likelihood_model_are_told_and_none_once_the_critic_began(caplog: Any) -> None:
    more = MAKE["wgan"](likelihood_steps=5)
    more.load_state_dict(saved(begun(begun(MAKE["wgan"]()))))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["trainer.wgan.likelihood_steps"]
    assert more.step(toy_batch())["c_loss"] != 0


# ---- Use without training.


@MODELS
def test_a_checkpoints_sampler_generates_as_the_task_does_a_wgans_correction_included(model: str) -> None:
    task = begun(MAKE[model]())
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    primary_E4 = toy_batch(64, seed=9).microbatches[0].event_columns["primary"]
    sampler = MuonSampler.from_state(task.config.network, saved(task), CPU)
    found = []
    for generate in (task.generate, sampler.bundles, getattr(task, "likelihood", task).generate):
        torch.manual_seed(3)
        found.append(generate(primary_E4))
    assert all(torch.equal(found[0].counts_E, other.counts_E) for other in found[1:])
    assert torch.equal(found[0].muons_P3, found[1].muons_P3)
    assert torch.equal(found[0].muons_P3, found[2].muons_P3) == (model == "likelihood")
    assert found[0].muons_P3.shape == (int(found[0].counts_E.sum()), 3)
    assert found[0].muons_P3.isfinite().all()


@pytest.mark.parametrize(("model", "names"), [("wgan", {"m_loss", "nll", "w_gap"}), ("likelihood", {"m_loss", "nll"})])
def test_held_out_metrics_change_nothing_and_are_the_same_again(model: str, names: set[str]) -> None:
    task = MAKE[model]()
    task.step(toy_batch())
    before, random = saved(task), torch.get_rng_state()

    first, second = (task.held_out(split(toy_batch(seed=5), [20, 12])) for _ in range(2))

    assert first == second
    assert first.keys() == names
    assert finite(first)
    assert torch.equal(torch.get_rng_state(), random)
    for network, state in before["networks"].items():
        now = task.networks.modules()[network].state_dict()
        assert all(torch.equal(value, now[name]) for name, value in state.items())
