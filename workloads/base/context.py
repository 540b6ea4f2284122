"""Conditions under which a task trains: device, seed, ranks, precision, noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.batch import Microbatch
from workloads.base.random_streams import Purpose, SharedPurpose, stream_seed

SumOverRanks = Callable[[Sequence[Tensor]], None]
"""Sum of tensors over all ranks, in place."""


def one_rank(tensors: Sequence[Tensor]) -> None:
    """Sum over a single rank: no change."""


@dataclass(frozen=True)
class UpdateLimits:
    """Largest loss and gradient norm of an update, checked on the device; above, it is skipped. math.inf: no limit."""

    max_loss: float = math.inf
    max_grad_norm: float = math.inf


@dataclass(frozen=True)
class StepContext:
    """Arguments of a task besides its own section of the configuration."""

    device: torch.device
    seed: int
    """Seed of the initial weights and of the noise."""
    limits: UpdateLimits = UpdateLimits()
    sum_over_ranks: SumOverRanks = one_rank
    bf16: bool = False
    """Networks compute in bfloat16 within `precision`; weights and optimisers stay in float32."""
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
        """Context for computing with a network that is trained: autocast if configured."""
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


class Noise:
    """Random generators on the device, one for each first microbatch of a rank or part.

    Their numbers depend on the purpose, the run's seed, the step and the place in its batch only: a resumed run with as
    many ranks draws the same ones, and checkpoints store no generator state.
    """

    def __init__(self, purpose: Purpose, seed: int, device: torch.device) -> None:
        self._purpose = purpose
        self._seed = seed
        self._device = device
        self._step = 0
        self._generators: dict[tuple[int, int], torch.Generator] = {}

    def begin(self, step: int) -> None:
        """Seed all generators for ``step``."""
        self._step = step
        for place, generator in self._generators.items():
            generator.manual_seed(stream_seed(self._purpose, self._seed, step, *place))

    def of(self, microbatch: Microbatch) -> torch.Generator:
        """Generator of the events from ``microbatch`` on. Each use advances it."""
        place = (microbatch.shard, microbatch.number)
        if place not in self._generators:
            generator = torch.Generator(self._device)
            generator.manual_seed(stream_seed(self._purpose, self._seed, self._step, *place))
            self._generators[place] = generator
        return self._generators[place]
