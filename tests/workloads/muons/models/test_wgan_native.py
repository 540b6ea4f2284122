"""The WGAN's step with its layers in C++, against the same step by torch and the plain one."""

from __future__ import annotations

import pytest
import torch
from native_layers import layers_in_cpp
from toy_events import toy_batch
from toy_tasks import CPU, SMALL, make_sgd_wgan

from workloads.base.context import StepContext
from workloads.muons.models.wgan import WganTask

pytestmark = pytest.mark.process  # a compiler

WIDE = SMALL.model_copy(update={"hidden": 64})


def task(threads: int = 1, **settings: object) -> WganTask:
    return make_sgd_wgan(StepContext(CPU, 1, threads=threads), 0.002, **{"network": WIDE, **settings})


@pytest.mark.parametrize(
    "settings", [{}, {"network": WIDE.model_copy(update={"azimuth": "learned"})}], ids=["default", "learned azimuth"]
)
def test_a_step_changes_the_weights_as_torchs_does(settings: dict[str, object]) -> None:
    in_cpp, by_torch = task(critic_steps=1, **settings), task(critic_steps=1, **settings)
    batch = toy_batch(200)
    with layers_in_cpp():
        in_cpp.step(batch)
        in_cpp.step(batch)
    by_torch.step(batch)
    by_torch.step(batch)
    for name, module in by_torch.networks.modules().items():
        found = in_cpp.networks.modules()[name].state_dict()
        for key, one in module.state_dict().items():
            torch.testing.assert_close(found[key], one, rtol=1e-5, atol=1e-6)


def test_parts_that_are_computed_at_once_give_the_step_of_one_after_the_other() -> None:
    narrow = SMALL.model_copy(update={"hidden": 32})
    one, four = (task(threads, network=narrow, chunk_particles=8) for threads in (1, 4))
    with layers_in_cpp():
        for seed in range(3):
            assert one.step(toy_batch(seed=seed)) == four.step(toy_batch(seed=seed))
