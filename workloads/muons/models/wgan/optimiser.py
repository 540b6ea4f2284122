"""Optimiser of generator and critic, as configured."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from workloads.base.optimiser import uncompiled
from workloads.muons.models.wgan.config import WganConfig


def make_optimiser(
    network: nn.Module, config: WganConfig, learning_rate: float, betas: tuple[float, float]
) -> Adam | SGD:
    """Configured optimiser, ``fused``: such optimisers can skip an update on the device. ``betas``: Adam's."""
    if config.optimiser == "adam":
        return uncompiled(Adam)(network.parameters(), learning_rate, betas=betas, fused=True)
    optimiser = uncompiled(SGD)(network.parameters(), learning_rate, momentum=config.momentum, fused=True)
    if config.momentum > 0:
        # torch creates them at the first update, and leaves them unset if that one is skipped.
        for parameter in network.parameters():
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser
