"""Steps of the WGAN with padded parts and recorded operators: those of the plain step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_graphs import FakeRuntime
from host_syncs import no_host_sync
from toy_events import split, toy_batch
from toy_tasks import SMALL_WGAN, make_sgd_wgan, make_wgan, saved, weights, without_noise

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.graphs import Graphs
from workloads.muons.models.wgan import WganTask
from workloads.muons.models.wgan_networks import WganNetworks

NETWORKS = ("critic", "generator", "count_head")
COUNTS = [*range(8)] * 4


def with_graphs(**settings: Any) -> tuple[WganTask, FakeRuntime]:
    task, runtime = make_wgan(**settings), FakeRuntime()
    task.graphs, task.networks.pads = Graphs(runtime), True
    return task, runtime


def assert_same(one: WganTask, two: WganTask) -> None:
    for name in NETWORKS:
        pairs = zip(*(weights(getattr(task.networks, name)) for task in (one, two)), strict=True)
        for expected, found in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"energy_score_weight": 0.0, "gp_every": 1},
        {"network": SMALL_WGAN.model_dump() | {"azimuth": "learned", "zero_truncated_counts": True}},
    ],
    ids=str,
)
def test_events_that_fill_a_bucket_change_neither_a_metric_nor_a_weight(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(WganNetworks, "draw", without_noise)
    plain, padded = make_sgd_wgan(**settings), make_sgd_wgan(**settings)
    padded.networks.pads = True
    for seed in range(3):
        batch = toy_batch(45, seed=seed)
        expected, found = plain.step(batch), padded.step(batch)
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert_same(plain, padded)


def test_the_parts_are_padded_to_a_bucket_and_halves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = with_graphs()
    batch = toy_batch(64, counts=COUNTS * 2)  # 64 events of 224 muons
    task.observe(batch)
    (part,) = task.parts(batch, task.noise)
    assert (part.segments.num_events, part.segments.num_particles) == (72, 224)
    assert part.num_particles == 224
    assert part.counted_E.sum() == 64
    assert part.present_E.sum() == part.signs_2E.abs().sum() / 2 == 56
    halves = part.halves()
    assert [half.num_particles for half in halves] == [112, 112]
    assert [half.counted_E.sum() for half in halves] == [32, 32]
    assert [half.segments.num_events for half in halves] == [36, 36]


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_clip": 0.5, "schedule_steps": 9}, {"critic_steps": 1, "gp_every": 3}, {"chunk_particles": 30}],
    ids=str,
)
def test_replayed_steps_are_those_that_compute_their_operators_each_time(settings: dict[str, Any]) -> None:
    plain = make_wgan(**settings)
    plain.networks.pads = True  # so that both draw the same noise
    graphs, runtime = with_graphs(**settings)
    for seed in range(6):
        batch = split(toy_batch(counts=COUNTS, seed=seed), [10, 0, 22])
        expected, found = plain.step(batch), graphs.step(batch)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
    for one, two in zip(*(saved(task)["networks"].values() for task in (plain, graphs)), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert runtime.replayed > 3 * runtime.recorded


def test_events_of_one_bucket_share_recordings_and_those_of_others_have_their_own() -> None:
    task, runtime = with_graphs(critic_steps=2, gp_every=2)
    task.step(toy_batch(counts=COUNTS))
    assert runtime.recorded == 4  # critic with penalty and, last, without; generator, count head
    for size in range(1, 7):
        task.step(toy_batch(counts=[*COUNTS[:-1], size]))  # 106 to 111 muons: buckets of 112 and 104
    assert runtime.recorded == 4
    task.step(toy_batch(64, counts=COUNTS * 2))
    assert runtime.recorded == 8


def test_a_resumed_training_replays_with_the_weights_that_it_loaded() -> None:
    first, _ = with_graphs()
    second, _ = with_graphs()
    first.step(toy_batch(counts=COUNTS))
    for seed in range(2):
        second.step(toy_batch(counts=COUNTS, seed=seed))  # other weights, already recorded
    second.load_state_dict(saved(first))
    expected, found = (task.step(toy_batch(counts=COUNTS, seed=7)) for task in (first, second))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_recording_that_fails_is_said_once_and_the_step_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    plain = make_wgan()
    plain.networks.pads = True
    task, runtime = with_graphs()
    runtime.broken = torch.OutOfMemoryError("scripted")
    for seed in range(2):
        expected, found = (one.step(toy_batch(counts=COUNTS, seed=seed)) for one in (plain, task))
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert [record.message for record in caplog.records] == ["trainer.wgan.cuda_graphs: off from now on: scripted"]
    assert runtime.recorded == 0


def test_no_replayed_step_makes_the_host_wait() -> None:
    task, _ = with_graphs()
    task.step(toy_batch(counts=COUNTS))
    task.step(toy_batch(counts=COUNTS))
    batch = toy_batch(counts=COUNTS, seed=1)
    with no_host_sync():
        task.step(batch)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_on_a_gpu_replayed_steps_are_those_that_compute_their_operators_each_time() -> None:
    cuda = torch.device("cuda")
    plain, graphs = (make_sgd_wgan(StepContext(cuda, 1), cuda_graphs=on) for on in (False, True))
    plain.networks.pads = True
    for seed in range(4):
        (microbatch,) = toy_batch(counts=COUNTS, seed=seed).microbatches
        batch = Batch((microbatch.to(cuda),))
        expected, found = plain.step(batch), graphs.step(batch)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert graphs.graphs is not None, "a recording failed"
