"""The optimiser of each network, as configured."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from workloads.base.context import SumOverRanks, UpdateLimits
from workloads.base.optimiser import GuardedOptimiser, uncompiled
from workloads.muons.models.count_head import MeanCountHead, MixtureCountHead
from workloads.muons.models.wgan.config import WganConfig


def make_optimiser(
    network: nn.Module,
    config: WganConfig,
    learning_rate: float,
    *,
    limits: UpdateLimits,
    sum_over_ranks: SumOverRanks,
) -> GuardedOptimiser:
    """As configured; the count head's is Adam always. ``fused`` ones can leave an update out by themselves."""
    optimiser: Adam | SGD
    if isinstance(network, MixtureCountHead | MeanCountHead):
        optimiser = uncompiled(Adam)(network.parameters(), learning_rate, fused=True)
    elif config.optimiser == "adam":
        optimiser = uncompiled(Adam)(network.parameters(), learning_rate, betas=config.betas, fused=True)
    else:
        optimiser = uncompiled(SGD)(network.parameters(), learning_rate, momentum=config.momentum, fused=True)
        if config.momentum > 0:
            # torch makes them at the first update, and leaves them unset if that one is left out.
            for parameter in network.parameters():
                optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return GuardedOptimiser(
        network,
        optimiser,
        learning_rate=learning_rate,
        clip=config.gradient_clip,
        limits=limits,
        sum_over_ranks=sum_over_ranks,
    )
