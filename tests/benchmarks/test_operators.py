"""The count of a step's operators, and the bound that it must keep."""

from __future__ import annotations

import pytest

from benchmarks.bench_operators import CPU, cut_batch, operators_of
from workloads.base.context import StepContext
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.models.wgan import WganTask

MOST_OPERATORS = 1200
CONFIG = WganConfig(network=MuonNetworkConfig(hidden=8), likelihood_steps=1, chunk_particles=1 << 20)


@pytest.mark.slow
def test_the_operators_of_a_step_do_not_depend_on_the_number_of_microbatches_and_are_few() -> None:
    counts = []
    for number in (1, 5, 20):
        task, batch = WganTask(CONFIG, StepContext(CPU, seed=1)), cut_batch(number)
        for _ in range(2):
            task.step(batch)
        counts.append(operators_of(lambda: task.step(batch), 2).operators)  # noqa: B023  # called here only
    assert counts[1] == counts[2] <= counts[0] + 4  # microbatches are joined by a few
    assert counts[2] <= MOST_OPERATORS
