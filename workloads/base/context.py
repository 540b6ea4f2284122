"""What the engine gives to a training step, whatever the model is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SumOverRanks = Callable[[Sequence[Tensor]], None]
"""Adds tensors up over all ranks, in place."""


def one_rank(tensors: Sequence[Tensor]) -> None:
    """The sum over a single rank: nothing changes."""


@dataclass(frozen=True)
class UpdateLimits:
    """Limits checked on the device before each update; an update beyond them is left out. math.inf: no limit."""

    max_loss: float = math.inf
    max_grad_norm: float = math.inf


@dataclass(frozen=True)
class StepContext:
    """Device, seed and limits of a training step."""

    device: torch.device
    seed: int
    limits: UpdateLimits = UpdateLimits()
    sum_over_ranks: SumOverRanks = one_rank
    bf16: bool = False
    """Networks under autocast, losses and weights in float32."""
    threads: int = 1
    """Parts of a batch that are computed at once on a CPU."""
