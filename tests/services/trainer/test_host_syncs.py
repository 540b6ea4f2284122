"""No host sync in a training step, in any configuration that matters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from host_syncs import no_host_sync
from toy_events import on, split, toy_batch
from toy_tasks import SMALL, make_wgan

from services.trainer.state import WindowedMean
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no penalty": {"penalty_weight": 0.0},
    "cosine": {"schedule_steps": 5},
    "azimuth learned": {"network": SMALL.model_copy(update={"azimuth": "learned"})},
    "one critic step": {"critic_steps": 1},
    "chunks": {"chunk_particles": 16},
}


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


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_itself_finds_no_sync_in_a_step(name: str) -> None:
    device = torch.device("cuda")
    config = WganConfig.model_validate({"network": SMALL, "likelihood_steps": 1, **CONFIGURATIONS[name]})
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
