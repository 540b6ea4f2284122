"""Spread of generated muons compared with real ones: near 0 if the generator has collapsed.

Shape suffixes: K sets, P particles, F features, M moments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base.kernels.elementwise import LEAST_SPREAD


def moments(features_KPF: Tensor, counted_P1: Tensor) -> Tensor:
    """Number of muons, sums of their features and of the squares, of each set: they add up. -> (K, 1 + 2 F).

    ``counted_P1``, (P, 1): 1 for muons that count, else 0.
    """
    features_KPF = features_KPF.detach().float()
    counted_KPF = features_KPF * counted_P1
    num_K1 = counted_P1.sum().expand(len(features_KPF), 1)
    return torch.cat([num_K1, counted_KPF.sum(1), (counted_KPF * features_KPF).sum(1)], 1)


def least_spread(real_and_fake_KM: Tensor) -> Tensor:
    """Smallest ratio, over the features, of standard deviations of generated to real muons. (2, M) -> ()."""
    smallest: Tensor = LEAST_SPREAD(real_and_fake_KM)
    return smallest
