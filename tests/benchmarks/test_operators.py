"""The count of a step's operators, and the bound that it must keep."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bench_operators import CPU, NothingReplayed, cut_batch, host_ms, operators_of, profiled_operators
from workloads.base.context import StepContext
from workloads.base.graphs import Graphs
from workloads.muons.models.wgan.config import NetworkConfig, WganConfig
from workloads.muons.models.wgan.task import WganTask

MOST_OPERATORS, MOST_BESIDE_GRAPHS = 600, 250
SMALL = NetworkConfig(hidden=8, count_hidden=8)


def make_task() -> WganTask:
    return WganTask(WganConfig(network=SMALL, chunk_particles=1 << 20), StepContext(CPU, seed=1))


def test_operators_are_what_computes_and_views_what_does_not() -> None:
    values = torch.ones(4, 3, requires_grad=True)

    def compute() -> None:
        torch.autograd.grad((values.t() * 2).sum(), values)  # mul, sum; backward: ones, mul

    count = operators_of(compute, 2)
    assert count.operators == 4
    assert 1 <= count.views <= 6
    assert profiled_operators(compute) > count.operators
    assert host_ms(compute, 3) > 0


@pytest.mark.slow
def test_the_operators_of_a_step_do_not_depend_on_the_number_of_microbatches_and_are_few() -> None:
    counts = []
    for number in (1, 5, 20):
        task, batch = make_task(), cut_batch(number)
        for _ in range(2):
            task.step(batch)
        counts.append(operators_of(lambda: task.step(batch), 2).operators)  # noqa: B023  # called here only
    assert counts[1] == counts[2] <= counts[0] + 4  # microbatches are joined by a few
    assert counts[2] <= MOST_OPERATORS


def test_few_operators_are_left_beside_graphs() -> None:
    task, batch = make_task(), cut_batch(5)
    task.graphs, task.networks.pads = Graphs(NothingReplayed()), True
    for _ in range(2):
        task.step(batch)
    assert operators_of(lambda: task.step(batch), 2).operators < MOST_BESIDE_GRAPHS
