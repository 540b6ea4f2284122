"""Conditions under which a task trains: device, seed, ranks, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.limits import NO_LIMITS, UpdateLimits
from workloads.base.random_streams import SharedPurpose, stream_seed

SumOverRanks = Callable[[Sequence[Tensor]], None]
"""Sum of tensors over all ranks, in place."""


def one_rank(tensors: Sequence[Tensor]) -> None:
    """Sum over a single rank: no change."""


@dataclass(frozen=True)
class StepContext:
    """Arguments of a task besides its own section of the configuration."""

    device: torch.device
    seed: int
    """Seed of the initial weights and of the noise."""
    limits: UpdateLimits = NO_LIMITS
    sum_over_ranks: SumOverRanks = one_rank
    bf16: bool = False
    """Networks compute in bfloat16 (bf16.py, or `precision`); weights and optimisers stay in float32."""
    threads: int = 1
    """Parts of a batch that are computed at the same time, on a CPU."""
    max_particles: int = 0
    """Particles up to which neighbouring microbatches are joined for a model whose memory they bound; 0: none are."""
    max_squared_particles: int = 0
    """The same for Σ N²; 0: no bound."""
    inputs: tuple[str, ...] = ()
    """Inputs of the run: a model may find tables, such as positions of sensors, beside local ones."""

    @contextmanager
    def initial_weights(self) -> Iterator[None]:
        """Context for building networks: torch's generator starts from ``seed`` and is restored afterwards.

        Weights are drawn on the host, so that a seed means the same start on every device.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(SharedPurpose.INITIAL_WEIGHTS, self.seed))
            yield

    def precision(self) -> AbstractContextManager[object]:
        """Context for computing with a network that has no rounded weights (bf16.py): autocast if configured."""
        if not self.bf16:
            return nullcontext()
        # autocast caches rounded weights for all threads and drops them when any thread leaves its block. A cached
        # weight sums the gradients of its uses in bfloat16: the result would depend on which thread ends first.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=self.device.type != "cpu")

    def total(self, value: float) -> Tensor:
        """Sum of a number over all ranks, on the device. -> () float32."""
        total = torch.full((), float(value), device=self.device)
        self.sum_over_ranks([total])
        return total
