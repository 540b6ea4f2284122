"""Promises that the steps of both muon models keep: what is trained when, threads, memory, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import CPU, MAKE, changed, make_likelihood, make_wgan, saved, weights

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.limits import UpdateLimits
from workloads.muons.models.likelihood.task import LikelihoodTask
from workloads.muons.models.wgan.task import WganTask

MODELS = pytest.mark.parametrize("model", MAKE)
LOSS = {"wgan": "c_loss", "likelihood": "muon_nll"}
MUON_UPDATES = {"wgan": 4, "likelihood": 1}
"""Updates of a step, but for the count head's: three of the critic and one of the generator; one of the densities."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


def of_muons(task: WganTask | LikelihoodTask) -> list[Tensor]:
    """Weights of the networks that learn from muons, as copies."""
    networks = task.networks.modules()
    others = {"count_head", "count_head_average", "standardise"}
    return [one for name in networks.keys() - others for one in weights(networks[name])]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def finite(metrics: Mapping[str, Tensor]) -> bool:
    return all(value.shape == () and bool(value.isfinite()) for value in metrics.values())


@MODELS
def test_a_batch_of_empty_events_trains_the_count_head_alone(model: str) -> None:
    task = MAKE[model]()
    task.step(toy_batch())
    before, count_head = of_muons(task), weights(task.networks.count_head)

    metrics = task.step(toy_batch(3, counts=[0, 0, 0]))

    assert same(before, of_muons(task))
    assert changed(count_head, task.networks.count_head)
    assert metrics["m_loss"] > 0
    assert all(metrics[name] == 0 for name in metrics.keys() & {"c_loss", "g_loss", "w_gap", "muon_nll", "kl"})


@MODELS
@pytest.mark.parametrize("counts", [[0, 0], [0, 1]])
def test_until_two_muons_were_seen_only_the_count_head_is_trained(model: str, counts: list[int]) -> None:
    task = MAKE[model]()
    before, count_head = of_muons(task), weights(task.networks.count_head)

    metrics = task.step(toy_batch(2, counts=counts))

    assert same(before, of_muons(task))
    assert changed(count_head, task.networks.count_head)
    assert finite(metrics)
    assert not task.is_fitted
    with pytest.raises(RuntimeError, match="not fitted"):
        task.generate(torch.ones(1, 4))
    task.step(toy_batch())
    assert task.is_fitted
    assert not same(before, of_muons(task))


@MODELS
def test_an_empty_microbatch_does_no_harm(model: str) -> None:
    task = MAKE[model]()
    nothing = make_microbatch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    (some,) = toy_batch().microbatches
    (hollow,) = toy_batch(2, counts=[0, 0]).microbatches

    assert all(value == 0 for value in task.step(Batch((nothing,))).values())
    metrics = task.step(Batch((nothing, hollow, some)))

    assert finite(metrics)
    assert metrics["skipped_updates"] == 0
    assert all(value.isfinite().all() for value in of_muons(task))


@MODELS
def test_a_batch_without_events_changes_nothing(model: str) -> None:
    task = MAKE[model]()
    task.step(toy_batch())
    before, count_head = of_muons(task), weights(task.networks.count_head)

    task.step(Batch(()))

    assert task.steps == 2
    assert same(before, of_muons(task))
    assert not changed(count_head, task.networks.count_head)


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
def test_weights_depend_on_the_seed_alone_and_the_caller_keeps_its_random_numbers(model: str) -> None:
    state = torch.get_rng_state()
    first = of_muons(MAKE[model]())
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    second, other = MAKE[model](), MAKE[model](StepContext(CPU, seed=2))

    assert same(first, of_muons(second))
    assert not same(first, of_muons(other))
    trained = {"wgan": ("count_head", "critic", "generator"), "likelihood": ("count_head", "muons")}[model]
    networks = second.networks.modules()
    assert second.num_parameters == sum(one.numel() for name in trained for one in networks[name].parameters())


@MODELS
def test_noise_depends_on_the_seed_and_not_on_anybody_elses_random_numbers(model: str) -> None:
    batch = toy_batch()
    first, same_seed, other = MAKE[model](), MAKE[model](), MAKE[model](StepContext(CPU, seed=2))
    other.load_weights(first.state_dict())
    torch.rand(5)

    expected = first.step(batch)

    assert expected == same_seed.step(batch)
    assert other.step(batch)[LOSS[model]] != expected[LOSS[model]]


@MODELS
@pytest.mark.parametrize("bf16", [False, True])
def test_parts_that_are_computed_at_once_give_the_step_of_one_after_the_other(model: str, bf16: bool) -> None:
    one, four = (MAKE[model](StepContext(CPU, 1, bf16=bf16, threads=threads), chunk_particles=8) for threads in (1, 4))

    for seed in range(3):
        assert one.step(toy_batch(seed=seed)) == four.step(toy_batch(seed=seed))
    assert same(of_muons(one), of_muons(four))


@MODELS
@pytest.mark.parametrize("limits", [UpdateLimits(max_grad_norm=1e-6), UpdateLimits(max_loss=1e-9)])
def test_an_update_beyond_the_limits_is_left_out(model: str, limits: UpdateLimits) -> None:
    task = MAKE[model](StepContext(CPU, 1, limits))
    before, count_head = of_muons(task), weights(task.networks.count_head)

    metrics = task.step(toy_batch())

    assert metrics["skipped_updates"] == MUON_UPDATES[model] + 1
    assert same(before, of_muons(task))
    assert not changed(count_head, task.networks.count_head)
    assert finite(metrics)


@MODELS
def test_an_update_that_is_not_finite_is_left_out_and_counted(model: str) -> None:
    task = MAKE[model]()
    task.step(toy_batch())
    (bad,) = toy_batch(seed=1).microbatches
    bad.particle_columns["muons"][0, 0] = float("nan")
    name, network = {"wgan": ("critic", "critic"), "likelihood": ("muons", "muons")}[model]
    before = weights(task.networks.modules()[network])
    state = saved(task)["optimisers"][name]["state"].values()

    metrics = task.step(Batch((bad,)))

    # The energy score compares with real muons, so that the generator's update is left out too.
    assert metrics["skipped_updates"] == MUON_UPDATES[model]
    assert not changed(before, task.networks.modules()[network])
    for one, other in zip(state, task.state_dict()["optimisers"][name]["state"].values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert all(value.isfinite().all() for value in of_muons(task))


# ---- Checkpoints.


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("wgan", {"optimiser": "adam", "gp_every": 2}),
        ("wgan", {"optimiser": "sgd", "gp_every": 2}),
        ("likelihood", {}),
    ],
)
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
        assert first["counters"]["critic_updates"] == 6 * 3
    for network, state in first["networks"].items():
        for name, value in state.items():
            assert torch.equal(value, second["networks"][network][name]), f"{network}.{name}"


def test_the_optimisers_keep_their_state_from_step_to_step() -> None:
    for task, updates in (
        (make_wgan(), {"critic": 9, "generator": 3, "count": 3}),
        (make_likelihood(), {"muons": 3, "count": 3}),
    ):
        for seed in range(3):
            task.step(toy_batch(seed=seed))
        assert task.state_dict()["optimisers"].keys() == updates.keys()
        for name, number in updates.items():
            states = list(task.state_dict()["optimisers"][name]["state"].values())
            assert states
            assert all(state["step"] == number for state in states)
            assert any(state["exp_avg_sq"].abs().sum() > 0 for state in states)


CHECKPOINT = {
    "wgan": {
        "networks": {
            *("standardise", "count_head", "count_head_average", "generator", "generator_average", "critic"),
        },
        "optimisers": {"count", "generator", "critic"},
        "counters": {
            *("steps", "generator_updates", "critic_updates", "rate_scale", "gap_measured_at", "gap_checked_at"),
        },
        "recipe": {
            *("optimiser", "schedule", "schedule_steps", "warmup_steps", "generator_lr", "critic_lr", "count_lr"),
        },
        "adaptive": {"critic_steps", "penalty_weight", "gaps", "rises", "quiet"},
        "gp_norm": set(),
        "held_out_gap": set(),
    },
    "likelihood": {
        "networks": {"standardise", "count_head", "count_head_average", "muons", "muons_average"},
        "optimisers": {"count", "muons"},
        "counters": {"steps", "rate_scale"},
        "recipe": {
            *("schedule", "schedule_steps", "warmup_steps", "likelihood_lr", "count_lr", "muon_weight", "max_muons"),
        },
    },
}


@MODELS
def test_a_checkpoint_keeps_its_keys(model: str) -> None:
    """Checkpoints of the first release are read with them."""
    found = {name: set(part) if isinstance(part, dict) else set() for name, part in MAKE[model]().state_dict().items()}
    assert found == CHECKPOINT[model]


@MODELS
def test_a_state_saved_before_anything_was_fitted_can_be_loaded(model: str) -> None:
    fresh, resumed = MAKE[model](), MAKE[model]()

    resumed.load_state_dict(saved(fresh))
    resumed.step(toy_batch())

    assert resumed.networks.standardise.has_features


@MODELS
def test_weights_of_another_run_are_taken_over_and_nothing_else(model: str) -> None:
    former, new = MAKE[model](), MAKE[model](StepContext(CPU, seed=2))
    former.step(toy_batch())

    new.load_weights(saved(former))

    assert same(of_muons(former), of_muons(new))
    assert new.is_fitted
    assert new.steps == 0


@MODELS
def test_another_recipe_is_logged_when_training_goes_on(model: str, caplog: pytest.LogCaptureFixture) -> None:
    before = MAKE[model]()
    before.step(toy_batch())
    MAKE[model](schedule_steps=9).load_state_dict(saved(before))
    assert [record.message for record in caplog.records] == [
        f"trainer.{model}.schedule_steps was 0 in the checkpoint and is 9 now; the weights are kept"
    ]


# ---- Use without training.


@pytest.mark.parametrize(("model", "names"), [("wgan", {"m_loss", "w_gap"}), ("likelihood", {"m_loss", "nll"})])
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


@pytest.mark.parametrize(("model", "setting"), [("wgan", "generator_average_decay"), ("likelihood", "average_decay")])
def test_averaged_weights_follow_the_latest_ones(model: str, setting: str) -> None:
    none, averaged = MAKE[model](**{setting: 0.0}).networks.averaged, MAKE[model]().networks.averaged
    assert none.used is none.latest
    assert averaged.used is averaged.average

    task = MAKE[model](**{setting: 0.0})
    task.step(toy_batch())
    assert not changed(weights(task.networks.averaged.latest), task.networks.averaged.average)

    task = MAKE[model]()
    start = weights(task.networks.averaged.latest)
    task.step(toy_batch())
    task.step(toy_batch(seed=1))
    assert changed(weights(task.networks.averaged.latest), task.networks.averaged.average)
    assert changed(start, task.networks.averaged.average)
