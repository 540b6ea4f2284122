"""The training step of the transformer. What the direction models share: the tests of their task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from direction_events import GEOMETRY, direction_batch, direction_microbatch

from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.direction.geometry import GEOMETRY_FILE, write_geometry
from workloads.direction.models.transformer.config import TransformerConfig
from workloads.direction.models.transformer.task import TransformerTask

SMALL = {"hidden": 16, "heads": 2, "pulse_hidden": 8}


@pytest.fixture
def geometry(tmp_path: Path) -> str:
    write_geometry(tmp_path / GEOMETRY_FILE, GEOMETRY)
    return str(tmp_path / GEOMETRY_FILE)


def make_task(geometry: str, *, threads: int = 1, bf16: bool = False, **settings: Any) -> TransformerTask:
    config = TransformerConfig.model_validate({"geometry": geometry, "network": SMALL} | settings)
    return TransformerTask(config, StepContext(torch.device("cpu"), seed=1, threads=threads, bf16=bf16))


def test_a_step_changes_the_weights_and_returns_finite_metrics(geometry: str) -> None:
    task = make_task(geometry)
    before = [parameter.clone() for parameter in task.averaged.latest.parameters()]

    metrics = task.step(direction_batch())

    assert metrics["skipped_updates"] == 0
    assert all(value.isfinite() for value in metrics.values())
    changed = [not torch.equal(*pair) for pair in zip(before, task.averaged.latest.parameters(), strict=True)]
    assert sum(changed) > 0.8 * len(changed)  # layers behind a weight of 0 wait for the second step


def test_chunks_and_threads_make_the_step_of_the_whole_batch(geometry: str) -> None:
    batch = direction_batch(24)
    expected = make_task(geometry, chunk_particles=10**6).step(batch)
    for threads in (1, 3):
        found = make_task(geometry, threads=threads, chunk_particles=60).step(batch)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_chunks_have_the_predictions_of_the_whole_batch(geometry: str) -> None:
    microbatch = direction_microbatch(24)
    whole, chunked = (
        make_task(geometry, chunk_particles=chunk).predictor().predict(microbatch) for chunk in (10**6, 60)
    )
    torch.testing.assert_close(chunked, whole, rtol=1e-3, atol=1e-5)


def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(geometry: str) -> None:
    batches = [direction_batch(seed=seed) for seed in range(4)]
    straight, first, resumed = (make_task(geometry) for _ in range(3))
    for batch in batches[:2]:
        straight.step(batch)
        first.step(batch)
    resumed.load_state_dict(first.state_dict())

    for batch in batches[2:]:
        expected, found = straight.step(batch), resumed.step(batch)
        assert all(torch.equal(found[name], value) for name, value in expected.items())

    pairs = zip(straight.averaged.used.parameters(), resumed.averaged.used.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_network_that_has_learned_nothing_yet_does_not_look_collapsed(geometry: str) -> None:
    """It has one arbitrary direction at first: a warning at the start of every run would be believed by nobody."""
    tasks = [make_task(geometry, warmup_steps=steps) for steps in (0, 1)]
    told = [float(task.step(direction_batch(32))["mean_direction"]) for task in tasks]
    assert told[0] > 0.3
    assert told[1] == 0


def test_bfloat16_trains(geometry: str) -> None:
    metrics = make_task(geometry, bf16=True).step(direction_batch())
    assert metrics["skipped_updates"] == 0
    assert all(value.isfinite() for value in metrics.values())


def test_a_batch_of_empty_events_is_no_failure(geometry: str) -> None:
    metrics = make_task(geometry).step(Batch((direction_microbatch(counts=[0, 0]),)))
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.slow
def test_64_events_are_learned_by_heart(geometry: str) -> None:
    task = make_task(geometry, network={}, symmetry="none", learning_rate=2e-3, warmup_steps=10, average_decay=0.0)
    batch = direction_batch(64)
    first = task.step(batch)["angle_deg"]
    for _ in range(150):
        last = task.step(batch)["angle_deg"]
    assert first > 60
    assert last < 5
