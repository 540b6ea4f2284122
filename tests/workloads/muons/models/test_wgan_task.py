"""The training step of the WGAN: its updates, and their metrics. What all models share: test_muon_tasks.py."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from own_operators import call_inside
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from toy_events import make_microbatch, split, toy_batch
from toy_tasks import CPU, SMALL_WGAN, changed, make_wgan, saved, weights, without_noise

from common.errors import BadInputError
from workloads.base.batch import Batch, joined
from workloads.base.context import StepContext
from workloads.base.segments import Segments
from workloads.muons.models.standardise import NUM_CONDITIONS
from workloads.muons.models.wgan.config import NetworkConfig
from workloads.muons.models.wgan.energy_score import EnergyScore
from workloads.muons.models.wgan.networks import WganEvents, WganNetworks


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_changes_all_three_networks_and_returns_finite_metrics(optimiser: str) -> None:
    task = make_wgan(optimiser=optimiser)
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
        "saturation",
        "fake_spread",
        "generator_grad_norm",
        "critic_grad_norm",
        "count_grad_norm",
        "skipped_updates",
    }
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert metrics["gp_norm"] > 0
    assert metrics["skipped_updates"] == 0
    assert (task.steps, task.generator_updates, task.critic_updates) == (1, 1, 3)


def test_the_generator_update_leaves_no_gradient_in_the_critic() -> None:
    task = make_wgan()
    task.step(toy_batch())

    assert all(parameter.grad is None for parameter in task.networks.critic.parameters())


def test_each_event_is_scored_with_its_own_muons(monkeypatch: pytest.MonkeyPatch) -> None:
    first, empty, other = split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22]).microbatches
    batch = Batch((first, empty, replace(other, shard=1)))
    task = make_wgan(chunk_particles=60)
    seen: list[tuple[Tensor, Segments]] = []
    score = task.networks._raw_scores

    def record(features: Tensor, conditions: Tensor, segments: Segments) -> Tensor:
        seen.append((features.detach(), segments))
        return score(features, conditions, segments)

    monkeypatch.setattr(task.networks, "_raw_scores", record)
    task.step(batch)

    chunks = list(joined((first, other)).chunks(60))
    assert [chunk.num_events for chunk in chunks] == [19, 13]
    for chunk, (features, segments) in zip(chunks, seen, strict=False):  # of the first of several updates
        real = task.networks.standardise.features(chunk.particle_columns["muons"])
        assert segments.counts_E.tolist() == 2 * chunk.offsets_E1.diff().tolist()  # real ones, then generated
        for event in range(chunk.num_events):
            start, end = chunk.offsets_E1[event : event + 2].tolist()
            assert (segments.event_P == event).nonzero().flatten().tolist() == list(range(start, end))
            expected = sorted(real[start:end].tolist())
            assert sorted(features[start:end].tolist()) == expected
            assert features[start:end, 0].tolist() == [muon[0] for muon in expected]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("network", [{}, {"layer_norm": False, "spectral_norm": True}])
def test_three_microbatches_make_the_step_that_one_microbatch_of_their_events_makes(
    monkeypatch: pytest.MonkeyPatch, network: dict[str, Any], shards: int
) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    # SGD, because Adam's first step only knows the sign of a gradient, and forgives a wrong scale.
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    settings["network"] = SMALL_WGAN.model_dump() | network
    whole, parts = make_wgan(**settings), make_wgan(**settings)
    batch = toy_batch(30)

    expected = whole.step(batch)
    three = enumerate(split(batch, [5, 14, 11]).microbatches)
    found = parts.step(Batch(tuple(replace(one, shard=index % shards, number=index) for index, one in three)))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for name in ("critic", "generator", "count_head"):
        for old, new in zip(
            weights(getattr(whole.networks, name)), weights(getattr(parts.networks, name)), strict=True
        ):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


def test_empty_events_change_nothing_for_critic_and_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    (full,) = toy_batch(4, counts=[2, 1, 3, 2]).microbatches
    primary = full.event_columns["primary"]
    padded = make_microbatch(
        torch.cat([primary[:2], primary[:1] * 0.5, primary[2:], primary[:1] * 2]),
        torch.tensor([2, 1, 0, 3, 2, 0]),
        full.particle_columns["muons"],
    )
    without, with_empty = make_wgan(), make_wgan()
    for task in (without, with_empty):
        task.observe(Batch((full,)))

    expected = without.step(Batch((full,)))
    found = with_empty.step(Batch((padded,)))

    for name in ("c_loss", "g_loss", "w_gap", "gp_norm", "critic_grad_norm", "generator_grad_norm"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert abs(float(found["m_loss"] - expected["m_loss"])) > 1e-3


def test_chunks_make_the_step_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    whole, chunked = make_wgan(**settings), make_wgan(**settings, chunk_particles=10)

    expected, found = whole.step(toy_batch(40)), chunked.step(toy_batch(40))

    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for old, new in zip(weights(whole.networks.critic), weights(chunked.networks.critic), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=2e-6)


def test_out_of_memory_the_batch_is_halved_and_the_step_is_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    whole, short = make_wgan(**settings), make_wgan(**settings)
    batch = toy_batch(40)
    limit = batch.num_particles * 2 // 3
    penalty = short.networks.penalty

    def short_of_memory(part: WganEvents, *arguments: Any) -> Any:
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


def test_another_optimiser_begins_anew_and_keeps_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    adam = make_wgan()
    adam.step(toy_batch())
    sgd = make_wgan(optimiser="sgd", generator_lr=0.01, schedule_steps=7)

    sgd.load_state_dict(saved(adam))

    assert not changed(weights(adam.networks.critic), sgd.networks.critic)
    assert sgd.steps == 1
    told = "\n".join(record.message for record in caplog.records)
    assert "trainer.wgan.optimiser was adam in the checkpoint and is sgd now" in told
    assert "trainer.wgan.schedule_steps was 0" in told
    assert saved(sgd)["optimisers"]["count"]["state"] != {}
    sgd.step(toy_batch(seed=1))


def test_sgd_whose_first_update_is_left_out_goes_on_from_no_momentum() -> None:
    task = make_wgan(optimiser="sgd", generator_lr=0.01, critic_lr=0.01, momentum=0.5)
    (bad,) = toy_batch(seed=1).microbatches
    task.observe(toy_batch())
    bad.particle_columns["muons"][0, 0] = float("nan")

    assert task.step(Batch((bad,)))["skipped_updates"] == 4  # three of the critic, one of the generator

    momenta = [state["momentum_buffer"] for state in saved(task)["optimisers"]["critic"]["state"].values()]
    assert momenta
    assert not any(momentum.any() for momentum in momenta)


@pytest.mark.slow
def test_of_a_huge_event_critic_and_generator_see_a_subset_and_the_count_head_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_wgan(critic_max_muons=50)
    seen: list[Segments] = []
    told: list[Tensor] = []
    score, loss = task.networks._raw_scores, task.networks.count_head.loss

    def record_score(features: Tensor, conditions: Tensor, segments: Segments) -> Tensor:
        seen.append(segments)
        return score(features, conditions, segments)

    def record_count(conditions: Tensor, counts: Tensor, counted: Tensor) -> Tensor:
        told.append(counts)
        return loss(conditions, counts, counted)

    monkeypatch.setattr(task.networks, "_raw_scores", record_score)
    monkeypatch.setattr(task.networks.count_head, "loss", record_count)
    metrics = task.step(toy_batch(4, counts=[3, 0, 700, 1]))

    assert seen[0].counts_E.tolist() == [3, 0, 50, 1] * 2
    assert seen[0].sizes_E.tolist() == [3, 0, 700, 1] * 2
    assert told[0].tolist() == [3, 0, 700, 1]
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(bool(value.isfinite()) for value in task.held_out(toy_batch(2, counts=[3, 700])).values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
@pytest.mark.parametrize("bf16", [False, True])
def test_compiled_networks_are_one_graph_each_with_the_same_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, bf16: bool
) -> None:
    """Graphs and derivatives of torch's compiler; the C++ behind them is compiled in the direction model's test."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    settings = {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01}
    context = StepContext(CPU, 1, bf16=bf16)
    plain, compiled = make_wgan(context, **settings), make_wgan(context, **settings, compile=True)

    num_graphs = []
    for num_events in (32, 41):
        expected, found = (task.step(toy_batch(num_events)) for task in (plain, compiled))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs == [5, 5], "generator and critic of two updates each, and penalty; for any number of events"

    segments = Segments.from_counts(torch.arange(23) % 7, int((torch.arange(23) % 7).sum()))
    conditions_EC, features_PF = torch.randn(23, NUM_CONDITIONS), torch.randn(segments.num_particles, 2)
    results = []
    for networks in (plain.networks, compiled.networks):
        noise = networks.generator.noise(segments, torch.Generator().manual_seed(5))
        values = (
            networks._generate(conditions_EC, segments, noise),
            networks._raw_scores(features_PF, conditions_EC, segments),
            networks._slope(features_PF, conditions_EC, segments),
        )
        loss = sum((one.square().sum() for one in values), torch.zeros(()))
        weights = [*networks.generator.parameters(), *networks.critic.parameters()]
        results.append((*values, *torch.autograd.grad(loss, weights)))
    for expected_value, found_value in zip(*results, strict=True):
        torch.testing.assert_close(found_value, expected_value, rtol=1e-3, atol=1e-5)


def test_compiling_without_a_compiler_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(BadInputError, match=r"C\+\+ compiler.*compile = false"):
        make_wgan(compile=True)


def test_bf16_is_close_to_float32() -> None:
    network = NetworkConfig(hidden=32)
    plain, rounded = (make_wgan(StepContext(CPU, 1, bf16=bf16), network=network) for bf16 in (False, True))

    expected, found = plain.step(toy_batch(256)), rounded.step(toy_batch(256))

    for name, value in expected.items():
        assert found[name].isfinite()
        torch.testing.assert_close(found[name], value, rtol=0.1, atol=0.05, msg=name)


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
        return call_inside(self, func, args, kwargs)


def test_a_step_waits_for_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_wgan(gradient_clip=1.0)
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
    task = make_wgan(network=NetworkConfig(hidden=64), schedule_steps=200)
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
def test_the_muons_energy_score_is_a_mean_over_events_by_their_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    task = make_wgan(critic_max_muons=most)
    generator_loss = task.networks.generator_loss

    def scores_of_one(part: Any, draw: Any) -> tuple[Tensor, EnergyScore]:
        loss, score = generator_loss(part, draw)
        return loss, EnergyScore(0 * score.of_muons + part.muons_weight_E.sum(), 0 * score.of_events)

    monkeypatch.setattr(task.networks, "generator_loss", scores_of_one)
    batch = split(toy_batch(counts=[*range(8)] * 4), [10, 22])
    assert float(task.step(batch)["energy_score"]) == pytest.approx(3.0)
    (whole,) = toy_batch(8, counts=[*range(8)]).microbatches
    expected = sum(size**0.75 for size in range(1, 8))
    thin = task.networks.events(task.prepare(whole, torch.Generator()), torch.Generator())
    assert thin.num_particles == (13 if most else 28)
    assert float(thin.muons_weight_E.sum()) == pytest.approx(expected)


def test_the_old_definitions_change_what_is_reported_and_not_what_is_trained() -> None:
    batch = toy_batch(64)
    settings: dict[str, Any] = {"gp_every": 1, "critic_steps": 1, "penalty_weight": 2.0}
    settings["network"] = SMALL_WGAN.model_dump() | {"score_limit": 0.05}
    new, old = make_wgan(**settings), make_wgan(**settings, old_definitions=True)
    first = new.step(batch)
    (part,) = old.parts(batch, old.noise) if old.observe(batch) else ()
    error = old.networks.count_error(part) / 64  # before the step: the count head is trained in it
    found = old.step(batch)
    for name in ("critic", "generator", "count_head"):
        pairs = zip(weights(getattr(new.networks, name)), weights(getattr(old.networks, name)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    penalty = (found["c_loss"] - first["c_loss"]) / 2.0
    assert 0 < penalty < 2
    torch.testing.assert_close(found["w_gap"], -first["c_loss"])
    assert abs(found["w_gap"]) < abs(first["w_gap"]), "of bounded scores"
    assert 0 < found["m_loss"] < error, "the mean squared error, after the update"
    mixture = old.networks.count_head(part.conditions_EC)
    mean = (mixture.log_weights_EK.exp() * mixture.log_means_EK.exp()).sum(1)
    expected = ((1 + mean).log10() - (1 + part.segments.sizes_E).log10()).square().mean()
    torch.testing.assert_close(found["m_loss"], expected)
