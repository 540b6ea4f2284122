"""Loss and error of predicted directions.

A prediction is a raw vector p: the direction p / |p| with the concentration κ = |p| of a von Mises-Fisher (vMF)
distribution, the normal distribution of directions. Shape suffix: E events.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SERIES_BELOW = 0.5
"""κ below which the logarithm of sinh κ / κ is a series: its next term, κ¹⁰ / 467,775, is below 1e-8 there."""


def vmf_loss(p_E3: Tensor, direction_E3: Tensor) -> Tensor:
    """Negative log-likelihood of true directions (unit vectors) under vMF distributions. (E, 3), (E, 3) -> (E,).

    -ln[κ exp(κ cos α) / (4π sinh κ)], Mardia and Jupp, Directional Statistics (2000), equation 9.3.4, with α the angle
    between both directions. Exact for every p, 0 included, and so is its gradient. At least float32.
    """
    p_E3 = _wide(p_E3)
    direction_E3 = direction_E3.to(p_E3.dtype)
    small_E = p_E3.detach().square().sum(1) < _SERIES_BELOW**2
    # Small κ: a polynomial in p. |p| has no gradient at 0, and a clamp on it would have none below.
    near_E3 = torch.where(small_E.unsqueeze(1), p_E3, 0.0)
    x_E = near_E3.square().sum(1)
    ln_sinh_ratio_E = x_E * (1 / 6 - x_E * (1 / 180 - x_E * (1 / 2835 - x_E / 37800)))
    near_E = math.log(4 * math.pi) + ln_sinh_ratio_E - (near_E3 * direction_E3).sum(1)
    # Large κ: sinh κ = exp(κ) (1 - exp(-2κ)) / 2. κ (1 - cos α) as a square: κ - p · t would cancel.
    far_E3 = torch.where(small_E.unsqueeze(1), direction_E3, p_E3)
    kappa_E = torch.linalg.vector_norm(far_E3, dim=1)
    apart_E = (far_E3 / kappa_E.unsqueeze(1) - direction_E3).square().sum(1) / 2
    ln_norm_E = math.log(2 * math.pi) + torch.log1p(-torch.exp(-2 * kappa_E)) - torch.log(kappa_E)
    return torch.where(small_E, near_E, kappa_E * apart_E + ln_norm_E)


def angle_deg(p_E3: Tensor, direction_E3: Tensor) -> Tensor:
    """Angle between predicted and true directions (unit vectors), in degrees; 90 for p = 0. (E, 3), (E, 3) -> (E,).

    Kahan's form 2 atan2(|u - t|, |u + t|) is exact at all angles; the arc cosine isn't below 0.03° in float32, and
    has no gradient at 0. At least float32.
    """
    unit_E3 = unit_vectors(p_E3)
    direction_E3 = direction_E3.to(unit_E3.dtype)
    minus_E = torch.linalg.vector_norm(unit_E3 - direction_E3, dim=1)
    plus_E = torch.linalg.vector_norm(unit_E3 + direction_E3, dim=1)
    angle_E: Tensor = torch.rad2deg(2 * torch.atan2(minus_E, plus_E))
    return angle_E


def unit_vectors(p_E3: Tensor) -> Tensor:
    """Directions of vectors, 0 for a vector of 0. At least float32. (E, 3) -> (E, 3)."""
    p_E3 = _wide(p_E3)
    length_E1: Tensor = torch.linalg.vector_norm(p_E3, dim=1, keepdim=True)
    return p_E3 / length_E1.clamp_min(torch.finfo(p_E3.dtype).tiny)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
