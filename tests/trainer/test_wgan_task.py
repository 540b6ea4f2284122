"""The training step of the WGAN, on toy events: negative binomial counts, lognormal energies and radii."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from services.trainer.batch import Batch, Microbatch
from services.trainer.segments import Segments
from services.trainer.wgan import losses
from services.trainer.wgan.config import NetworkConfig, WganConfig
from services.trainer.wgan.model import Generator
from services.trainer.wgan.task import WganTask, learning_rate_factor

CPU = torch.device("cpu")
SMALL = NetworkConfig(hidden=16, count_hidden=16, z_global=4, z_local=4)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: more threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)


def make_microbatch(primary: Tensor, counts: Tensor, muons: Tensor) -> Microbatch:
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        event_columns={"primary": primary},
        particle_columns={"muons": muons},
        num_events=len(counts),
        num_particles=len(muons),
    )


def toy_microbatch(num_events: int, seed: int, counts: list[int] | None = None) -> Microbatch:
    """Events whose mean count and muon energy rise with the energy of the primary."""
    rng = torch.Generator().manual_seed(seed)
    lg_energy = 5 + 2 * torch.rand(num_events, generator=rng)
    primary = torch.stack(
        [
            10**lg_energy,
            torch.rand(num_events, generator=rng),
            torch.tensor([1.0, 56.0])[torch.randint(2, (num_events,), generator=rng)],
            1500 + 500 * torch.rand(num_events, generator=rng),
        ],
        1,
    )
    if counts is None:
        shape = 3
        gamma = -torch.rand(num_events, shape, generator=rng).log().sum(1) / shape
        counts_E = torch.poisson(10 ** (lg_energy - 5.8) * gamma, generator=rng).long()
    else:
        counts_E = torch.tensor(counts)
    total = int(counts_E.sum())
    lg_primary = lg_energy.repeat_interleave(counts_E)
    energy = 10 ** (lg_primary / 3 + 0.4 * torch.randn(total, generator=rng))
    radius = 10 ** (1 + 0.3 * torch.randn(total, generator=rng))
    azimuth = 6.2832 * torch.rand(total, generator=rng)
    muons = torch.stack([energy, radius * azimuth.cos(), radius * azimuth.sin()], 1)
    return make_microbatch(primary, counts_E, muons)


def toy_batch(num_events: int = 32, seed: int = 0, counts: list[int] | None = None) -> Batch:
    return Batch((toy_microbatch(num_events, seed, counts),))


def split(batch: Batch, sizes: list[int]) -> Batch:
    """The same events in microbatches of ``sizes`` events."""
    (whole,) = batch.microbatches
    counts = whole.offsets_E1.diff().split(sizes)
    primaries = whole.event_columns["primary"].split(sizes)
    muons = whole.particle_columns["muons"].split([int(part.sum()) for part in counts])
    return Batch(tuple(make_microbatch(*parts) for parts in zip(primaries, counts, muons, strict=True)))


def make_task(**settings: Any) -> WganTask:
    return WganTask(WganConfig.model_validate({"network": SMALL, **settings}), CPU, seed=1)


def weights(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def changed(before: list[Tensor], network: nn.Module) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


def saved(task: WganTask) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(task.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def without_noise(self: Generator, segments: Segments) -> tuple[Tensor, Tensor]:
    return (
        torch.zeros(segments.num_events, self.z_global),
        torch.zeros(segments.num_particles, self.z_local),
    )


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_changes_all_three_networks_and_returns_finite_metrics(optimiser: str) -> None:
    task = make_task(optimiser=optimiser)
    networks = (task.count_head, task.generator, task.critic)
    before = [weights(network) for network in networks]

    metrics = task.step(toy_batch())

    assert all(changed(old, network) for old, network in zip(before, networks, strict=True))
    assert set(metrics) == {
        "c_loss",
        "g_loss",
        "m_loss",
        "w_gap",
        "gp_norm",
        "generator_grad_norm",
        "critic_grad_norm",
        "skipped_updates",
    }
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert metrics["gp_norm"] > 0
    assert metrics["skipped_updates"] == 0
    assert (task.steps, task.generator_updates, task.critic_updates) == (1, 1, 5)


def test_the_optimisers_keep_their_state_from_step_to_step() -> None:
    task = make_task()
    for seed in range(3):
        task.step(toy_batch(seed=seed))

    for optimiser, updates in (
        (task.critic_optimiser, 15),
        (task.generator_optimiser, 3),
        (task.count_optimiser, 3),
    ):
        states = list(optimiser.state.values())
        assert states
        assert all(state["step"] == updates for state in states)
        assert any(state["exp_avg_sq"].abs().sum() > 0 for state in states)


def test_the_generator_update_leaves_no_gradient_in_the_critic() -> None:
    task = make_task()
    task.step(toy_batch())

    assert all(parameter.grad is None for parameter in task.critic.parameters())


def test_each_event_is_scored_with_its_own_muons(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22])
    task = make_task()
    seen: list[tuple[Tensor, Tensor]] = []
    score = task.critic.raw_scores

    def record(features: Tensor, conditions: Tensor, segments: Segments) -> Tensor:
        seen.append((features.detach(), segments.event_P))
        return score(features, conditions, segments)

    monkeypatch.setattr(task.critic, "raw_scores", record)
    task.step(batch)

    real_of = {"first": (batch.microbatches[0], seen[0]), "last": (batch.microbatches[2], seen[3])}
    for microbatch, (features, event_P) in real_of.values():
        assert torch.equal(features, task.standardise.features(microbatch.particle_columns["muons"]))
        for event in range(microbatch.num_events):
            start, end = microbatch.offsets_E1[event : event + 2].tolist()
            assert (event_P == event).nonzero().flatten().tolist() == list(range(start, end))


def test_three_microbatches_make_the_step_that_one_microbatch_of_their_events_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Generator, "noise", without_noise)
    monkeypatch.setattr(torch, "rand_like", lambda values: torch.full_like(values, 0.5))
    # SGD, because Adam's first step only knows the sign of a gradient, and forgives a wrong scale.
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    whole, parts = make_task(**settings), make_task(**settings)
    batch = toy_batch(30)

    expected = whole.step(batch)
    found = parts.step(split(batch, [5, 14, 11]))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for network in ("critic", "generator", "count_head"):
        for old, new in zip(weights(getattr(whole, network)), weights(getattr(parts, network)), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


def test_empty_events_change_nothing_for_critic_and_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "noise", without_noise)
    monkeypatch.setattr(torch, "rand_like", lambda values: torch.full_like(values, 0.5))
    (full,) = toy_batch(4, counts=[2, 1, 3, 2]).microbatches
    primary = full.event_columns["primary"]
    padded = make_microbatch(
        torch.cat([primary[:2], primary[:1] * 0.5, primary[2:], primary[:1] * 2]),
        torch.tensor([2, 1, 0, 3, 2, 0]),
        full.particle_columns["muons"],
    )
    without, with_empty = make_task(), make_task()
    for task in (without, with_empty):
        task.observe(Batch((full,)))

    expected = without.step(Batch((full,)))
    found = with_empty.step(Batch((padded,)))

    for name in ("c_loss", "g_loss", "w_gap", "gp_norm", "critic_grad_norm", "generator_grad_norm"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert abs(float(found["m_loss"] - expected["m_loss"])) > 1e-3


def test_a_batch_of_empty_events_trains_the_count_head_alone() -> None:
    task = make_task()
    task.step(toy_batch())
    before = [weights(network) for network in (task.critic, task.generator, task.count_head)]

    metrics = task.step(toy_batch(3, counts=[0, 0, 0]))

    assert not changed(before[0], task.critic)
    assert not changed(before[1], task.generator)
    assert changed(before[2], task.count_head)
    assert metrics["m_loss"] > 0
    assert metrics["c_loss"] == metrics["g_loss"] == metrics["w_gap"] == 0


@pytest.mark.parametrize("counts", [[0, 0], [0, 1]])
def test_until_two_muons_were_seen_only_the_count_head_is_trained(counts: list[int]) -> None:
    task = make_task()
    before = weights(task.critic), weights(task.count_head)

    metrics = task.step(toy_batch(2, counts=counts))

    assert not changed(before[0], task.critic)
    assert changed(before[1], task.count_head)
    assert all(value.isfinite() for value in metrics.values())
    with pytest.raises(RuntimeError, match="not fitted"):
        task.generate(torch.ones(1, 4))

    before = weights(task.critic), weights(task.count_head)
    task.step(toy_batch())
    assert changed(before[0], task.critic)


def test_an_empty_microbatch_or_batch_does_no_harm() -> None:
    task = make_task()
    nothing = make_microbatch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    (some,) = toy_batch().microbatches
    (hollow,) = toy_batch(2, counts=[0, 0]).microbatches

    assert all(value == 0 for value in task.step(Batch((nothing,))).values())
    metrics = task.step(Batch((nothing, hollow, some)))

    assert all(value.isfinite() for value in metrics.values())
    assert metrics["skipped_updates"] == 0
    assert all(parameter.isfinite().all() for parameter in task.critic.parameters())


def test_the_standardisation_is_fitted_to_the_first_batch_and_then_kept() -> None:
    task = make_task()

    assert task.observe(split(toy_batch(), [8, 24]))
    mean = task.standardise.feature_mean_F.clone()
    assert not task.observe(toy_batch(seed=9))

    assert torch.equal(task.standardise.feature_mean_F, mean)
    (whole,) = toy_batch().microbatches
    features = task.standardise.features(whole.particle_columns["muons"])
    torch.testing.assert_close(features.mean(0), torch.zeros(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_training_goes_on_bit_for_bit_from_a_saved_state(optimiser: str) -> None:
    settings = {"optimiser": optimiser, "gp_every": 2, "schedule_steps": 20}
    task = make_task(**settings)
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    task.critic_steps, task.penalty_weight = 3, 1.5
    state, random_state = saved(task), torch.get_rng_state()

    resumed = WganTask(task.config, CPU, seed=99)
    resumed.load_state_dict(state)

    metrics = []
    for trained in (task, resumed):
        torch.set_rng_state(random_state)
        metrics.append([trained.step(toy_batch(seed=seed)) for seed in range(3, 6)])
    assert metrics[0] == metrics[1]
    first, second = saved(task), saved(resumed)
    assert first["counters"] == second["counters"]
    assert first["counters"]["critic_updates"] == 3 * 5 + 3 * 3
    for network in ("critic", "generator", "generator_average", "count_head", "standardise"):
        for name, value in first[network].items():
            assert torch.equal(value, second[network][name]), f"{network}.{name}"


def test_a_state_saved_before_anything_was_fitted_can_be_loaded() -> None:
    fresh, resumed = make_task(), make_task()

    resumed.load_state_dict(saved(fresh))
    resumed.step(toy_batch())

    assert resumed.standardise.has_features


def test_weights_depend_on_the_seed_alone_and_the_caller_keeps_its_random_numbers() -> None:
    state = torch.get_rng_state()
    first = weights(make_task().critic)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    second = make_task()
    other = WganTask(second.config, CPU, seed=2)

    assert not changed(first, second.critic)
    assert changed(first, other.critic)
    assert second.num_parameters == sum(
        len(parameter.flatten())
        for network in (second.count_head, second.critic, second.generator)
        for parameter in network.parameters()
    )


def test_the_gradient_penalty_is_computed_every_so_many_updates_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task(gp_every=3, critic_steps=2)
    at = []
    penalty = task._penalty
    monkeypatch.setattr(task, "_penalty", lambda *arguments: (at.append(task.critic_updates), penalty(*arguments))[1])

    norms = [float(task.step(toy_batch(seed=seed))["gp_norm"]) for seed in range(4)]

    assert at == [0, 3, 6]
    assert norms[2] == norms[1]  # updates 4 and 5 have none: the latest is reported


def test_a_rarer_gradient_penalty_is_as_much_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "noise", without_noise)
    monkeypatch.setattr(torch, "rand_like", lambda values: torch.full_like(values, 0.5))
    monkeypatch.setattr(losses, "critic_loss", lambda real, fake, present: 0 * (real + fake).sum())

    every, rare = (
        make_task(gp_every=gp_every, critic_steps=1).step(toy_batch())["critic_grad_norm"] for gp_every in (1, 4)
    )

    assert every > 0
    torch.testing.assert_close(rare, 4 * every)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    task = make_task()
    task.step(toy_batch())
    (bad,) = toy_batch(seed=1).microbatches
    bad.particle_columns["muons"][0, 0] = float("nan")
    before = weights(task.critic)

    metrics = task.step(Batch((bad,)))

    assert metrics["skipped_updates"] == 5
    assert not changed(before, task.critic)
    assert all(value.isfinite().all() for value in weights(task.generator))


def test_clipping_bounds_the_gradient_that_is_applied_and_reports_the_one_before() -> None:
    settings = {"optimiser": "sgd", "momentum": 0.0, "critic_lr": 1.0, "critic_steps": 1}
    task = make_task(**settings, gradient_clip=0.01)
    before = weights(task.critic)

    norm = task.step(toy_batch())["critic_grad_norm"]

    moved = torch.stack([(new - old).norm() for new, old in zip(weights(task.critic), before, strict=True)]).norm()
    assert norm > 0.02
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_follows_a_cosine_to_five_percent_or_stays() -> None:
    cosine = WganConfig(schedule_steps=100)

    assert learning_rate_factor(0, cosine) == 1
    assert learning_rate_factor(50, cosine) == pytest.approx(0.525)
    assert learning_rate_factor(100, cosine) == learning_rate_factor(900, cosine) == pytest.approx(0.05)
    assert learning_rate_factor(900, WganConfig()) == 1
    task = make_task(schedule_steps=2)
    for _ in range(3):
        task.step(toy_batch(4, counts=[1, 2, 0, 1]))
    assert task.critic_optimiser.param_groups[0]["lr"] == pytest.approx(0.05 * 4e-4)
    assert task.count_optimiser.param_groups[0]["lr"] == pytest.approx(0.05 * 2e-3)


def test_held_out_metrics_change_no_weight() -> None:
    task = make_task()
    task.step(toy_batch())
    before = weights(task.critic), weights(task.count_head)

    metrics = task.held_out(split(toy_batch(seed=5), [20, 12]))

    assert set(metrics) == {"m_loss", "w_gap"}
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert not changed(before[0], task.critic)
    assert not changed(before[1], task.count_head)


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_generated_events_have_as_many_muons_as_their_counts_say(azimuth: str) -> None:
    task = make_task(network={**SMALL.model_dump(), "azimuth": azimuth})
    task.step(toy_batch(counts=[3] * 32))

    bundles = task.generate(toy_batch(64).microbatches[0].event_columns["primary"])

    assert bundles.counts_E.shape == (64,)
    assert bundles.muons_P3.shape == (int(bundles.counts_E.sum()), 3)
    assert bundles.muons_P3.isfinite().all()
    assert (bundles.muons_P3[:, 0] > 0).all()
    assert bundles.num_capped == 0


def test_generated_counts_above_the_limit_are_cut_down_and_counted() -> None:
    task = make_task(sampling={"max_count": 2})
    task.step(toy_batch(counts=[3] * 32))
    with torch.no_grad():
        task.count_head.output.bias.fill_(4.0)

    bundles = task.generate(toy_batch(64).microbatches[0].event_columns["primary"])

    assert bundles.counts_E.max() == 2
    assert bundles.num_capped > 50


def test_the_averaged_generator_follows_the_latest_one() -> None:
    task = make_task(generator_average_decay=0.0)
    task.step(toy_batch())
    assert not changed(weights(task.generator), task.generator_average)

    averaged = make_task()
    averaged.step(toy_batch())
    averaged.step(toy_batch(seed=1))
    assert changed(weights(averaged.generator), averaged.generator_average)


class Recorder(TorchDispatchMode):
    """Names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            name = "repeat_interleave without output_size"
        self.names.add(name)
        return func(*args, **kwargs)


def test_a_step_waits_for_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(gradient_clip=1.0)
    batch = split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22])
    # Adam counts its steps on the host, and reads that count: no wait, but the same operation.
    for optimiser in (task.critic_optimiser, task.generator_optimiser, task.count_optimiser):
        monkeypatch.setattr(optimiser, "step", lambda: None)

    with Recorder() as recorder:
        task.step(batch)

    assert {"scatter_reduce", "native_layer_norm_backward", "lgamma", "repeat_interleave"} <= recorder.names
    waiting = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal"}
    assert recorder.names.isdisjoint(waiting | {"repeat_interleave without output_size"})


@pytest.mark.slow
def test_two_hundred_steps_on_toy_events_stay_finite_and_learn_the_counts() -> None:
    task = make_task(network=NetworkConfig(hidden=64), schedule_steps=200)
    counts_nll = []
    for seed in range(200):
        metrics = task.step(toy_batch(128, seed=seed))
        assert all(value.isfinite() for value in metrics.values())
        counts_nll.append(float(metrics["m_loss"]))
    first, last = counts_nll[:10], counts_nll[-10:]

    assert sum(last) / 10 < 2
    assert sum(last) < 0.8 * sum(first)
    assert float(metrics["w_gap"]) < 2
