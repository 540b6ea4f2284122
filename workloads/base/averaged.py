"""Exponential moving average (EMA) of a network's weights."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from workloads.base.bf16 import is_rounded

Network = TypeVar("Network", bound=nn.Module)


class AveragedWeights(Generic[Network]):
    """A network and the running mean of its weights, arXiv:1806.04498."""

    def __init__(self, latest: Network, decay: float) -> None:
        """``decay`` 0: no average, the copy follows the network."""
        self.latest = latest
        self.average: Network = copy.deepcopy(latest).requires_grad_(False)
        self._decay = decay
        self._pairs: tuple[list[Tensor], list[Tensor]] = list(self.average.parameters()), list(latest.parameters())

    @property
    def used(self) -> Network:
        """The network for validation and use: the average, if there is one. It has no rounded weights (bf16.py)."""
        if self._decay == 0:
            if not is_rounded(self.latest):
                return self.latest
            with torch.no_grad():
                torch._foreach_copy_(*self._pairs)
        return self.average

    def update(self, num_updates: int) -> None:
        """Update the mean after ``num_updates`` updates in all; its window is short at first, to forget the start."""
        decay = min(self._decay, num_updates / (num_updates + 10))
        with torch.no_grad():
            torch._foreach_lerp_(*self._pairs, 1 - decay)
