"""Operations of a step: those that a pencil gives, in whatever thread, compiled or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from toy_events import toy_batch
from toy_tasks import SMALL

from workloads.base.context import StepContext
from workloads.base.device import PartPool
from workloads.base.flops import counted_flops
from workloads.muons.models.config import WganConfig
from workloads.muons.models.wgan import WganTask

CPU = torch.device("cpu")
ROWS, INPUTS, OUTPUTS = 10, 3, 5
PRODUCT = 2 * ROWS * INPUTS * OUTPUTS
"""Multiplications and additions of (rows, inputs) @ (inputs, outputs)."""


def forward_and_backward(inputs: Tensor, weight: Tensor) -> Tensor:
    loss = nn.functional.leaky_relu(inputs @ weight).sum()
    loss.backward()
    return loss


def tensors() -> tuple[Tensor, Tensor]:
    return torch.ones(ROWS, INPUTS, requires_grad=True), torch.ones(INPUTS, OUTPUTS, requires_grad=True)


def test_products_of_both_passes_are_counted_and_nothing_else() -> None:
    with counted_flops() as count:
        forward_and_backward(*tensors())
        torch.ones(1000).exp().sum()
    assert count.flops == 3 * PRODUCT, "the product, and one for each gradient"
    forward_and_backward(*tensors())
    assert count.flops == 3 * PRODUCT


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_in_other_threads_are_counted(threads: int) -> None:
    pool = PartPool(threads)
    with counted_flops() as count:
        list(pool.map(lambda _: forward_and_backward(*tensors()), range(7)))
    assert count.flops == 7 * 3 * PRODUCT
    list(pool.map(lambda _: forward_and_backward(*tensors()), range(7)))
    assert count.flops == 7 * 3 * PRODUCT, "and no longer afterwards"


def test_a_step_that_fails_ends_the_count() -> None:
    with pytest.raises(ZeroDivisionError), counted_flops():
        raise ZeroDivisionError
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_function_is_counted_as_written_and_compiled_afterwards(*, fullgraph: bool) -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(len(inputs))
        return graph.forward

    function = torch.compile(lambda a, b: nn.functional.leaky_relu(a @ b), fullgraph=fullgraph, backend=backend)
    with counted_flops() as count:
        function(*tensors())
    assert count.flops == PRODUCT
    assert not compiled
    function(*tensors())
    assert len(compiled) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_of_the_wgan_has_the_operations_that_torch_counts_and_the_same_result(threads: int) -> None:
    config, batch = WganConfig(network=SMALL, critic_steps=2), toy_batch(40)
    tasks = [WganTask(config, StepContext(CPU, 1, threads=number)) for number in (1, threads, threads)]
    with FlopCounterMode(display=False) as torchs:
        tasks[0].step(batch)
    with counted_flops() as count:
        counted = tasks[1].step(batch)
    plain = tasks[2].step(batch)
    assert count.flops == torchs.get_total_flops() > 0
    assert all(torch.equal(counted[name], plain[name]) for name in plain)
