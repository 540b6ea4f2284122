"""No host sync in a training step, in any configuration that matters; and that a sync would be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from host_syncs import HostSync, no_host_sync
from torch import Tensor, nn
from torch.optim import SGD, Adam
from toy_events import split, toy_batch
from toy_tasks import SMALL_WGAN, make_wgan

from services.trainer.telemetry.window import WindowedMean
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.task import WganTask

NETWORK = SMALL_WGAN.model_dump()
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no penalty": {"penalty_weight": 0.0},
    "penalty one-sided, every third time": {"one_sided": True, "gp_every": 3},
    "clipped": {"gradient_clip": 1.0},
    "SGD": {"optimiser": "sgd", "generator_lr": 0.01, "critic_lr": 0.01},
    "cosine": {"schedule": "cosine", "schedule_steps": 5},
    "azimuth learned": {"network": NETWORK | {"azimuth": "learned"}},
    "one critic step": {"critic_steps": 1},
    "chunks": {"chunk_particles": 16},
    "two events a score, plain norm": {"score_events": 2, "gradient_norm": "plain"},
    "spectral normalisation": {
        "penalty_weight": 0.0,
        "network": NETWORK | {"layer_norm": False, "spectral_norm": True},
    },
    "spectral normalisation and penalty": {"network": NETWORK | {"layer_norm": False, "spectral_norm": True}},
    "max pooling, no limit of the score": {"network": NETWORK | {"pooling": "max", "score_limit": 0.0}},
    "sum pooling": {"network": NETWORK | {"pooling": "sum"}},
    "warm-up": {"warmup_steps": 3},
    "adaptive critic": {"adaptive": {"enabled": True, "every": 2}},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ragged_batches() -> list[Batch]:
    """Several microbatches, an empty one, empty events; the counts differ from batch to batch."""
    batches = [split(toy_batch(counts=[*range(8)] * 4), [10, 0, 22])]
    batches += [toy_batch(32, seed=seed) for seed in (1, 2)]
    batches.append(split(toy_batch(counts=[0] * 16 + [3] * 16), [16, 16]))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_step_makes_the_host_wait_once_the_standardisation_is_fitted(name: str) -> None:
    task = make_wgan(**CONFIGURATIONS[name])
    task.step(toy_batch())
    w_gap = WindowedMean(500, torch.device("cpu"))
    for batch in ragged_batches():
        with no_host_sync():
            metrics = task.step(batch)
            w_gap.add(metrics["w_gap"])
            w_gap.mean()


ONES = torch.ones(3)
SYNCS: dict[str, Callable[[], object]] = {
    "item": lambda: ONES.sum().item(),
    "float()": lambda: float(ONES.sum()),
    "int()": lambda: int(ONES.sum()),
    "if": lambda: 1 if ONES.sum() > 2 else 0,
    "tolist": ONES.tolist,
    "numpy": ONES.numpy,
    "cpu": ONES.cpu,
    "in": lambda: 1.0 in ONES,
    "range of a 0-dim tensor": lambda: range(torch.ones((), dtype=torch.int64)),
    "equal": lambda: torch.equal(ONES, ONES),
    "nonzero": lambda: ONES.nonzero(),
    "where of one argument": lambda: torch.where(ONES > 0),
    "a mask as index": lambda: ONES[ONES > 0],
    "a mask as index, assigned": lambda: torch.ones(3).__setitem__(ONES > 0, ONES),
    "masked_select": lambda: ONES.masked_select(ONES > 0),
    "unique": lambda: ONES.unique(),
    "repeat_interleave": lambda: ONES.repeat_interleave(ONES.long()),
    "bincount": lambda: ONES.long().bincount(),
    "torch.tensor": lambda: torch.tensor([1.0, 2.0]),
    "another device": lambda: ONES.to("meta"),
}


@pytest.mark.parametrize("name", SYNCS)
def test_each_kind_of_sync_is_found(name: str) -> None:
    with pytest.raises(HostSync, match=r"test_host_syncs\.py"), no_host_sync():
        SYNCS[name]()


def test_what_needs_no_wait_is_let_through() -> None:
    index = torch.tensor([0, 2])
    with no_host_sync():
        assert ONES[index].shape == (2,)
        torch.where(ONES > 0, ONES, 0.0).sum().clamp_min(1)
        ONES.repeat_interleave(torch.ones(3, dtype=torch.int64), output_size=3)
        torch.zeros(3, device="cpu").add_(ONES).to(torch.float64)
        torch.full_like(ONES, 2.0).masked_fill(ONES > 0, 0.0)


@pytest.mark.parametrize("make", [lambda p: Adam(p, 0.1), lambda p: SGD(p, 0.1, momentum=0.9)])
def test_an_optimiser_may_read_its_step_count_and_nothing_else(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimiser = make([weight])
    for _ in range(2):
        weight.grad = torch.ones(3)
        optimiser.step()
    with no_host_sync():
        optimiser.step()
        with pytest.raises(HostSync):
            weight.sum().item()
    optimiser.register_step_pre_hook(lambda *_: weight.sum().item())
    with pytest.raises(HostSync), no_host_sync():
        optimiser.step()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_item_put_into_the_step_is_found(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    task = make_wgan()
    task.step(toy_batch())
    batch = toy_batch(seed=1)
    score = task.networks._raw_scores  # what a step calls: perhaps compiled

    def with_sync(*arguments: Any) -> Tensor:
        scores: Tensor = score(*arguments)
        if where == "forward":
            scores.sum().item()
        elif scores.requires_grad:
            scores.register_hook(lambda gradient: gradient * gradient.sum().item())
        return scores

    monkeypatch.setattr(task.networks, "_raw_scores", with_sync)
    with pytest.raises(HostSync, match=r"test_host_syncs\.py.*item"), no_host_sync():
        task.step(batch)


def on(device: torch.device, batch: Batch) -> Batch:
    return Batch(
        tuple(
            replace(
                part,
                offsets_E1=part.offsets_E1.to(device),
                event_columns={name: column.to(device) for name, column in part.event_columns.items()},
                particle_columns={name: column.to(device) for name, column in part.particle_columns.items()},
            )
            for part in batch.microbatches
        )
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_itself_finds_no_sync_in_a_step(name: str) -> None:
    device = torch.device("cuda")
    config = WganConfig.model_validate({"network": SMALL_WGAN, **CONFIGURATIONS[name]})
    task = WganTask(config, StepContext(device, 1))
    for seed in range(2):
        task.step(on(device, toy_batch(seed=seed)))
    batches = [on(device, batch) for batch in ragged_batches()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            task.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
