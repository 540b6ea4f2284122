"""Seed, precision and sums over ranks, as every task gets them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workloads.base.context import StepContext

CPU = torch.device("cpu")


def test_initial_weights_depend_on_the_seed_alone_and_the_caller_keeps_its_random_numbers() -> None:
    def draw(seed: int) -> Tensor:
        with StepContext(CPU, seed).initial_weights():
            return torch.rand(3)

    state = torch.get_rng_state()
    first = draw(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert torch.equal(draw(1), first)
    assert not torch.equal(draw(2), first)


def test_networks_compute_in_bfloat16_only_if_wanted() -> None:
    for bf16, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        with StepContext(CPU, 1, bf16=bf16).precision():
            assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_a_total_is_summed_over_the_ranks() -> None:
    def with_another_rank(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.add_(5)

    assert StepContext(CPU, 1).total(3).item() == 3
    total = StepContext(CPU, 1, sum_over_ranks=with_another_rank).total(3)
    assert total.item() == 8
    assert total.dtype == torch.float32
