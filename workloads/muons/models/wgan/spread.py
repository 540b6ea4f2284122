"""Spread of generated muons compared with real ones: near 0 if the generator has collapsed.

Shape suffixes: P particles, F features, M moments.
"""

from __future__ import annotations

import torch
from torch import Tensor


def moments(features_PF: Tensor) -> Tensor:
    """Number of muons, sums of their features, and of the squares: they add up over parts. (P, F) -> (1 + 2 F,)."""
    features_PF = features_PF.detach().float()
    num = torch.full((1,), len(features_PF), dtype=torch.float32, device=features_PF.device)
    return torch.cat([num, features_PF.sum(0), features_PF.square().sum(0)])


def least_spread(fake_M: Tensor, real_M: Tensor) -> Tensor:
    """Smallest ratio, over the features, of standard deviations of generated to real muons. -> ()."""
    fake_F, real_F = _variance(fake_M), _variance(real_M)
    return (fake_F / real_F.clamp_min(1e-12)).sqrt().min()


def _variance(moments_M: Tensor) -> Tensor:
    mean_F, square_F = (moments_M[1:] / moments_M[0].clamp_min(1)).chunk(2)
    return (square_F - mean_F.square()).clamp_min(0)
