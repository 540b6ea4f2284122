"""The training step of the WGAN, on toy events: negative binomial counts, lognormal energies and radii."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.limits import UpdateLimits
from workloads.base.schedule import learning_rate_factor
from workloads.base.segments import Segments
from workloads.muons.models.wgan import losses
from workloads.muons.models.wgan.config import AdaptiveConfig, NetworkConfig, WganConfig
from workloads.muons.models.wgan.energy_score import EnergyScore
from workloads.muons.models.wgan.networks import Draw, Events, Networks
from workloads.muons.models.wgan.task import WganTask

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
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=offsets,
        host_offsets_E1=offsets.numpy(),
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
    return WganTask(WganConfig.model_validate({"network": SMALL, **settings}), StepContext(CPU, 1))


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


def without_noise(self: Networks, part: Events, *, for_generator: bool = False) -> Draw:
    num_events, num_particles = part.source.num_events, part.source.num_particles
    draw = Draw(
        torch.zeros(num_events, self.generator.z_global),
        torch.zeros(num_particles, self.generator.z_local),
        torch.full((num_events,), 0.5),
    )
    has_other = for_generator and self.config.energy_score_weight > 0
    other = (torch.ones_like(draw.z_EZ), torch.ones_like(draw.z_PZ))
    return draw._replace(other=other) if has_other else draw


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_changes_all_three_networks_and_returns_finite_metrics(optimiser: str) -> None:
    task = make_task(optimiser=optimiser)
    networks = (task.networks.count_head, task.networks.generator, task.networks.critic)
    before = [weights(network) for network in networks]

    metrics = task.step(toy_batch())

    assert all(changed(old, network) for old, network in zip(before, networks, strict=True))
    assert set(metrics) == {
        "c_loss",
        "g_loss",
        "energy_score",
        "m_loss",
        "w_gap",
        "gp_norm",
        "generator_grad_norm",
        "critic_grad_norm",
        "count_grad_norm",
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

    for name, updates in (("critic", 15), ("generator", 3), ("count", 3)):
        states = list(task.state_dict()["optimisers"][name]["state"].values())
        assert states
        assert all(state["step"] == updates for state in states)
        assert any(state["exp_avg_sq"].abs().sum() > 0 for state in states)


def test_the_generator_update_leaves_no_gradient_in_the_critic() -> None:
    task = make_task()
    task.step(toy_batch())

    assert all(parameter.grad is None for parameter in task.networks.critic.parameters())


def test_each_event_is_scored_with_its_own_muons(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22])
    task = make_task()
    seen: list[tuple[Tensor, Segments]] = []
    score = task.networks._raw_scores

    def record(features: Tensor, conditions: Tensor, segments: Segments) -> Tensor:
        seen.append((features.detach(), segments))
        return score(features, conditions, segments)

    monkeypatch.setattr(task.networks, "_raw_scores", record)
    task.step(batch)

    for microbatch, (features, segments) in ((batch.microbatches[0], seen[0]), (batch.microbatches[2], seen[1])):
        real = task.networks.standardise.features(microbatch.particle_columns["muons"])
        assert segments.counts_E.tolist() == 2 * microbatch.offsets_E1.diff().tolist()  # real ones, then generated
        for event in range(microbatch.num_events):
            start, end = microbatch.offsets_E1[event : event + 2].tolist()
            assert (segments.event_P == event).nonzero().flatten().tolist() == list(range(start, end))
            expected = sorted(real[start:end].tolist())
            assert sorted(features[start:end].tolist()) == expected
            assert features[start:end, 0].tolist() == [muon[0] for muon in expected]


@pytest.mark.parametrize("network", [{}, {"layer_norm": False, "spectral_norm": True}])
def test_three_microbatches_make_the_step_that_one_microbatch_of_their_events_makes(
    monkeypatch: pytest.MonkeyPatch, network: dict[str, Any]
) -> None:
    monkeypatch.setattr(Networks, "draw", without_noise)
    # SGD, because Adam's first step only knows the sign of a gradient, and forgives a wrong scale.
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    settings["network"] = SMALL.model_dump() | network
    whole, parts = make_task(**settings), make_task(**settings)
    batch = toy_batch(30)

    expected = whole.step(batch)
    found = parts.step(split(batch, [5, 14, 11]))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for name in ("critic", "generator", "count_head"):
        for old, new in zip(
            weights(getattr(whole.networks, name)), weights(getattr(parts.networks, name)), strict=True
        ):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


def test_empty_events_change_nothing_for_critic_and_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Networks, "draw", without_noise)
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
    before = [weights(network) for network in (task.networks.critic, task.networks.generator, task.networks.count_head)]

    metrics = task.step(toy_batch(3, counts=[0, 0, 0]))

    assert not changed(before[0], task.networks.critic)
    assert not changed(before[1], task.networks.generator)
    assert changed(before[2], task.networks.count_head)
    assert metrics["m_loss"] > 0
    assert metrics["c_loss"] == metrics["g_loss"] == metrics["w_gap"] == 0


@pytest.mark.parametrize("counts", [[0, 0], [0, 1]])
def test_until_two_muons_were_seen_only_the_count_head_is_trained(counts: list[int]) -> None:
    task = make_task()
    before = weights(task.networks.critic), weights(task.networks.count_head)

    metrics = task.step(toy_batch(2, counts=counts))

    assert not changed(before[0], task.networks.critic)
    assert changed(before[1], task.networks.count_head)
    assert all(value.isfinite() for value in metrics.values())
    with pytest.raises(RuntimeError, match="not fitted"):
        task.generate(torch.ones(1, 4))

    before = weights(task.networks.critic), weights(task.networks.count_head)
    task.step(toy_batch())
    assert changed(before[0], task.networks.critic)


def test_an_empty_microbatch_or_batch_does_no_harm() -> None:
    task = make_task()
    nothing = make_microbatch(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    (some,) = toy_batch().microbatches
    (hollow,) = toy_batch(2, counts=[0, 0]).microbatches

    assert all(value == 0 for value in task.step(Batch((nothing,))).values())
    metrics = task.step(Batch((nothing, hollow, some)))

    assert all(value.isfinite() for value in metrics.values())
    assert metrics["skipped_updates"] == 0
    assert all(parameter.isfinite().all() for parameter in task.networks.critic.parameters())


def test_the_standardisation_is_fitted_to_the_first_batch_and_then_kept() -> None:
    task = make_task()

    assert task.observe(split(toy_batch(), [8, 24]))
    mean = task.networks.standardise.feature_mean_F.clone()
    assert not task.observe(toy_batch(seed=9))

    assert torch.equal(task.networks.standardise.feature_mean_F, mean)
    (whole,) = toy_batch().microbatches
    features = task.networks.standardise.features(whole.particle_columns["muons"])
    torch.testing.assert_close(features.mean(0), torch.zeros(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_training_goes_on_bit_for_bit_from_a_saved_state(optimiser: str) -> None:
    settings = {"optimiser": optimiser, "gp_every": 2, "schedule_steps": 20}
    task = make_task(**settings)
    for seed in range(3):
        task.step(toy_batch(seed=seed))
    task.scale_learning_rates(0.5)
    state = saved(task)

    resumed = WganTask(task.config, StepContext(CPU, 1))
    resumed.load_state_dict(state)

    metrics = []
    for trained in (task, resumed):
        torch.rand(3)  # nobody else's random numbers matter
        metrics.append([trained.step(toy_batch(seed=seed)) for seed in range(3, 6)])
    assert metrics[0] == metrics[1]
    first, second = saved(task), saved(resumed)
    assert first["counters"] == second["counters"]
    assert first["counters"]["critic_updates"] == 6 * 5
    for network in ("critic", "generator", "generator_average", "count_head", "standardise"):
        for name, value in first["networks"][network].items():
            assert torch.equal(value, second["networks"][network][name]), f"{network}.{name}"


def test_a_state_saved_before_anything_was_fitted_can_be_loaded() -> None:
    fresh, resumed = make_task(), make_task()

    resumed.load_state_dict(saved(fresh))
    resumed.step(toy_batch())

    assert resumed.networks.standardise.has_features


def test_weights_depend_on_the_seed_alone_and_the_caller_keeps_its_random_numbers() -> None:
    state = torch.get_rng_state()
    first = weights(make_task().networks.critic)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    second = make_task()
    other = WganTask(second.config, StepContext(CPU, 2))

    assert not changed(first, second.networks.critic)
    assert changed(first, other.networks.critic)
    assert second.num_parameters == sum(
        len(parameter.flatten())
        for network in (second.networks.count_head, second.networks.critic, second.networks.generator)
        for parameter in network.parameters()
    )


def test_the_gradient_penalty_is_computed_every_so_many_updates_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task(gp_every=3, critic_steps=2)
    at = []
    penalty = task.networks.penalty
    monkeypatch.setattr(
        task.networks, "penalty", lambda *arguments: (at.append(task.critic_updates), penalty(*arguments))[1]
    )

    norms = [float(task.step(toy_batch(seed=seed))["gp_norm"]) for seed in range(4)]

    assert at == [0, 3, 6]
    assert norms[2] == norms[1]  # updates 4 and 5 have none: the latest is reported


def test_a_rarer_gradient_penalty_is_as_much_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Networks, "draw", without_noise)
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
    before = weights(task.networks.critic)
    state = saved(task)["optimisers"]["critic"]

    metrics = task.step(Batch((bad,)))

    assert metrics["skipped_updates"] == 6  # the energy score compares with real muons, so the generator's too
    assert not changed(before, task.networks.critic)
    for one, other in zip(
        state["state"].values(), task.state_dict()["optimisers"]["critic"]["state"].values(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(value.isfinite().all() for value in weights(task.networks.generator))


@pytest.mark.parametrize("limits", [UpdateLimits(max_grad_norm=1e-6), UpdateLimits(max_loss=1e-9)])
def test_an_update_beyond_the_limits_is_left_out(limits: UpdateLimits) -> None:
    task = WganTask(WganConfig(network=SMALL), StepContext(CPU, 1, limits))
    networks = (task.networks.count_head, task.networks.generator, task.networks.critic)
    before = [weights(network) for network in networks]

    metrics = task.step(toy_batch())

    assert metrics["skipped_updates"] == 7
    assert not any(changed(old, network) for old, network in zip(before, networks, strict=True))
    assert metrics["c_loss"].isfinite()


def test_parts_that_are_worked_off_at_once_teach_the_same_as_one_after_the_other() -> None:
    settings = {"network": SMALL, "chunk_particles": 8}
    config = WganConfig.model_validate(settings)
    one, four = (WganTask(config, StepContext(CPU, 1, threads=threads)) for threads in (1, 4))

    for seed in range(3):
        assert one.step(toy_batch(seed=seed)) == four.step(toy_batch(seed=seed))
    for old, new in zip(weights(one.networks.critic), weights(four.networks.critic), strict=True):
        assert torch.equal(old, new)


def test_chunks_make_the_step_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Networks, "draw", without_noise)
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    whole, chunked = make_task(**settings), make_task(**settings, chunk_particles=10)

    expected, found = whole.step(toy_batch(40)), chunked.step(toy_batch(40))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for old, new in zip(weights(whole.networks.critic), weights(chunked.networks.critic), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


def test_out_of_memory_the_batch_is_halved_and_the_step_is_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Networks, "draw", without_noise)
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    whole, short = make_task(**settings), make_task(**settings)
    batch = toy_batch(40)
    limit = batch.num_particles * 2 // 3
    penalty = short.networks.penalty

    def short_of_memory(part: Events, *arguments: Any) -> Any:
        if part.source.num_particles > limit:
            raise torch.OutOfMemoryError("scripted")
        return penalty(part, *arguments)

    monkeypatch.setattr(short.networks, "penalty", short_of_memory)

    expected, found = whole.step(batch), short.step(batch)

    assert [record.message for record in caplog.records] == [
        f"out of memory with {batch.num_particles} particles: the batch is split in two"
    ]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_memory_that_is_short_for_half_a_batch_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()

    def no_memory(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("scripted")

    monkeypatch.setattr(task.networks, "penalty", no_memory)
    with pytest.raises(torch.OutOfMemoryError, match="scripted"):
        task.step(toy_batch())


def test_another_optimiser_begins_anew_and_keeps_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    adam = make_task()
    adam.step(toy_batch())
    sgd = make_task(optimiser="sgd", generator_lr=0.01, schedule_steps=7)

    sgd.load_state_dict(saved(adam))

    assert not changed(weights(adam.networks.critic), sgd.networks.critic)
    assert sgd.steps == 1
    told = "\n".join(record.message for record in caplog.records)
    assert "trainer.wgan.optimiser was adam in the checkpoint and is sgd now" in told
    assert "trainer.wgan.schedule_steps was 0" in told
    assert saved(sgd)["optimisers"]["count"]["state"] != {}
    sgd.step(toy_batch(seed=1))


def test_a_sample_of_events_stands_for_all_in_the_penalty() -> None:
    task = make_task(gp_sample_fraction=0.25)
    batch = toy_batch(64, counts=[2] * 64)
    task.observe(batch)
    (part,) = task.parts(batch, task.noise)
    draw = task.networks.draw(part)
    fake = task.networks.fake(part, draw.noise).detach()

    sampled = [task.networks.penalty(part, fake, draw.mix_E, update) for update in range(200)]
    task.networks.config = task.config.model_copy(update={"gp_sample_fraction": 1.0})
    whole = task.networks.penalty(part, fake, draw.mix_E, 0)

    assert whole is not None
    assert len({float(one.penalty.detach()) for one in sampled if one is not None}) == 4
    mean = sum(float(one.norm) for one in sampled if one is not None) / len(sampled)
    assert mean == pytest.approx(float(whole.norm), rel=0.1)


def test_the_adaptive_critic_acts_on_a_batch_before_it_is_trained_on_and_its_state_is_saved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    task = make_task(adaptive={"enabled": True, "every": 1, "max_critic_steps": 6})
    for seed in range(5):
        metrics = {name: float(value) for name, value in task.step(toy_batch(seed=seed)).items()}
        task.observed(metrics | {"held_out_gap": 1.0})
    task.step(toy_batch(seed=9))
    task.observed(metrics | {"held_out_gap": 0.1})
    task.observed(metrics | {"held_out_gap": 0.1})  # the same gap again: nothing to decide

    assert task.critic_steps == 6
    assert "critic_steps 5 -> 6" in caplog.text
    resumed = make_task(adaptive={"enabled": True, "every": 1, "max_critic_steps": 6})
    resumed.load_state_dict(saved(task))
    assert resumed.critic_steps == 6
    assert resumed.step(toy_batch(seed=10)) == task.step(toy_batch(seed=10))


def test_the_adaptive_critic_may_be_turned_off_between_a_measurement_and_its_check() -> None:
    task = make_task(adaptive={"enabled": True, "every": 1})
    task.step(toy_batch())
    resumed = make_task()
    resumed.load_state_dict(saved(task))

    metrics = {name: float(value) for name, value in resumed.step(toy_batch(seed=1)).items()}
    resumed.observed(metrics)

    assert resumed.critic_steps == 5


def test_a_rank_without_muons_takes_the_gap_of_the_others_and_nothing_else() -> None:
    def sum_with_others(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.add_(1.0)

    config = WganConfig(network=SMALL, adaptive=AdaptiveConfig(enabled=True, every=1))
    task = WganTask(config, StepContext(CPU, 1, sum_over_ranks=sum_with_others))
    task.observe(toy_batch())

    metrics = task.step(Batch((), events_elsewhere=3, particles_elsewhere=9))

    assert metrics["held_out_gap"] == 1
    assert metrics["skipped_updates"] == 0


def test_sgd_whose_first_update_is_left_out_goes_on_from_no_momentum() -> None:
    task = make_task(optimiser="sgd", generator_lr=0.01, critic_lr=0.01, momentum=0.5)
    (bad,) = toy_batch(seed=1).microbatches
    task.observe(toy_batch())
    bad.particle_columns["muons"][0, 0] = float("nan")

    assert task.step(Batch((bad,)))["skipped_updates"] == 6  # five of the critic, one of the generator

    momenta = [state["momentum_buffer"] for state in saved(task)["optimisers"]["critic"]["state"].values()]
    assert momenta
    assert not any(momentum.any() for momentum in momenta)


def test_learning_rates_warm_up_from_near_zero_and_then_follow_the_cosine() -> None:
    config = WganConfig(warmup_steps=9, schedule_steps=109)

    assert learning_rate_factor(0, config) == pytest.approx(0.1)
    assert learning_rate_factor(8, config) == pytest.approx(0.9)
    assert learning_rate_factor(9, config) == 1
    assert learning_rate_factor(109, config) == pytest.approx(0.05)
    assert learning_rate_factor(3, WganConfig(schedule="constant", warmup_steps=3)) == 1


@pytest.mark.slow
def test_of_a_huge_event_critic_and_generator_see_a_subset_and_the_count_head_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task(critic_max_muons=50)
    seen: list[Segments] = []
    told: list[Tensor] = []
    score, loss = task.networks._raw_scores, task.networks.count_head.loss

    def record_score(features: Tensor, conditions: Tensor, segments: Segments) -> Tensor:
        seen.append(segments)
        return score(features, conditions, segments)

    def record_count(conditions: Tensor, counts: Tensor) -> Tensor:
        told.append(counts)
        return loss(conditions, counts)

    monkeypatch.setattr(task.networks, "_raw_scores", record_score)
    monkeypatch.setattr(task.networks.count_head, "loss", record_count)
    metrics = task.step(toy_batch(4, counts=[3, 0, 700, 1]))

    assert seen[0].counts_E.tolist() == [3, 0, 50, 1] * 2
    assert seen[0].sizes_E.tolist() == [3, 0, 700, 1] * 2
    assert told[0].tolist() == [3, 0, 700, 1]
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(bool(value.isfinite()) for value in task.held_out(toy_batch(2, counts=[3, 700])).values())


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
def test_compiled_networks_make_the_same_step() -> None:
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    plain, compiled = make_task(**settings), make_task(**settings, compile=True)

    for seed in range(2):
        expected, found = plain.step(toy_batch(seed=seed)), compiled.step(toy_batch(seed=seed))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_compiling_without_a_compiler_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(BadInputError, match=r"C\+\+ compiler.*compile = false"):
        make_task(compile=True)


def test_bf16_is_close_to_float32() -> None:
    plain = make_task(network=NetworkConfig(hidden=32))
    rounded = WganTask(plain.config, StepContext(CPU, 1, bf16=True))

    expected, found = plain.step(toy_batch(256)), rounded.step(toy_batch(256))

    for name, value in expected.items():
        assert found[name].isfinite()
        torch.testing.assert_close(found[name], value, rtol=0.1, atol=0.05, msg=name)


def test_clipping_bounds_the_gradient_that_is_applied_and_reports_the_one_before() -> None:
    settings = {"optimiser": "sgd", "momentum": 0.0, "critic_lr": 1.0, "critic_steps": 1}
    task = make_task(**settings, gradient_clip=0.01)
    before = weights(task.networks.critic)

    norm = task.step(toy_batch())["critic_grad_norm"]

    moved = torch.stack(
        [(new - old).norm() for new, old in zip(weights(task.networks.critic), before, strict=True)]
    ).norm()
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
    config = task.config
    assert task.learning_rates() == pytest.approx(
        {"critic": 0.05 * config.critic_lr, "generator": 0.05 * config.generator_lr, "count": 0.05 * config.count_lr}
    )


def test_held_out_metrics_change_no_weight() -> None:
    task = make_task()
    task.step(toy_batch())
    before = weights(task.networks.critic), weights(task.networks.count_head)

    metrics = task.held_out(split(toy_batch(seed=5), [20, 12]))

    assert set(metrics) == {"m_loss", "w_gap"}
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert not changed(before[0], task.networks.critic)
    assert not changed(before[1], task.networks.count_head)


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
        task.networks.count_head.output.bias.fill_(4.0)

    bundles = task.generate(toy_batch(64).microbatches[0].event_columns["primary"])

    assert bundles.counts_E.max() == 2
    assert bundles.num_capped > 50


def test_the_averaged_generator_follows_the_latest_one() -> None:
    task = make_task(generator_average_decay=0.0)
    task.step(toy_batch())
    assert not changed(weights(task.networks.generator), task.networks.averaged.average)

    averaged = make_task()
    averaged.step(toy_batch())
    averaged.step(toy_batch(seed=1))
    assert changed(weights(averaged.networks.generator), averaged.networks.averaged.average)


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
    for optimiser in task.optimisers.values():
        monkeypatch.setattr(optimiser._optimiser, "step", lambda: None)

    with Recorder() as recorder:
        task.step(batch)

    assert {"_embedding_bag", "native_layer_norm_backward", "lgamma", "repeat_interleave"} <= recorder.names
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


@pytest.mark.parametrize("most", [0, 2])
def test_the_energy_score_is_a_mean_over_the_muons_that_it_was_taken_of(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    task = make_task(critic_max_muons=most)
    generator_loss = task.networks.generator_loss

    def scores_of_one(part: Any, draw: Any) -> tuple[Tensor, EnergyScore]:
        loss, score = generator_loss(part, draw)
        return loss, EnergyScore(0 * score.of_muons + part.source.num_particles, 0 * score.of_events)

    monkeypatch.setattr(task.networks, "generator_loss", scores_of_one)
    batch = split(toy_batch(counts=[*range(8)] * 4), [10, 22])
    assert float(task.step(batch)["energy_score"]) == pytest.approx(3.0)
