"""The meter of operations: one step is counted, and the others by their particles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from toy_events import toy_batch

from services.trainer.speed.flop_meter import FlopMeter
from workloads.base.batch import Batch
from workloads.base.flops import is_counting


class ProductTask:
    """One product of (particles, 3) @ (3, 5) a step."""

    def __init__(self) -> None:
        self.counted: list[bool] = []

    def step(self, batch: Batch) -> dict[str, Tensor]:
        self.counted.append(is_counting())
        for part in batch.microbatches:
            part.particle_columns["muons"] @ torch.ones(3, 5)
        return {"loss": torch.tensor(float(batch.num_events))}


def test_later_steps_count_by_their_particles_and_a_batch_of_another_rank_counts_nothing() -> None:
    meter, task = FlopMeter(), ProductTask()
    small, large = toy_batch(30), toy_batch(90)
    assert meter.step(task, Batch(()))["loss"] == 0.0  # type: ignore[arg-type]
    assert meter.total == 0.0
    assert meter.step(task, small)["loss"] == 30.0  # type: ignore[arg-type]
    assert meter.total == small.num_particles * 30.0
    meter.step(task, large)  # type: ignore[arg-type]
    meter.step(task, Batch(()))  # type: ignore[arg-type]
    assert meter.total == pytest.approx((small.num_particles + large.num_particles) * 30.0)
    assert task.counted == [False, True, False, False], "counting costs time"


def test_a_compiled_model_is_not_counted_so_that_a_restart_computes_as_before() -> None:
    meter, task = FlopMeter(), ProductTask()
    task.config = SimpleNamespace(compile=True)  # type: ignore[attr-defined]
    meter.step(task, toy_batch(30))  # type: ignore[arg-type]
    assert task.counted == [False]
    assert meter.total == 0.0
