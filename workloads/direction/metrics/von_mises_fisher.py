"""Von Mises-Fisher distribution on the sphere: p(θ) dΩ = κ / (4π sinh κ) exp(κ cos θ) dΩ. Pure.

Functions hold for every κ ≥ 0: nothing overflows or cancels. K values of κ, each with its angle θ in radians.
"""

from __future__ import annotations

import numpy as np
from scipy.special import i0e

from workloads.direction.metrics.angles import Float64

_SMALL = 1e-4
"""Values of κ below this: first terms of the series, whose error is of the order κ²."""


def mean_angle_rad(kappa_K: Float64) -> Float64:
    """Mean angle from the distribution's own direction. (K,) -> (K,).

    π (I0(κ) - exp(-κ)) / (2 sinh κ), by parts from the density; π/2 for κ = 0, about sqrt(π / (2κ)) for large κ. Both
    sides of the fraction are scaled by exp(-κ): I0(κ) itself overflows from 714 on.
    """
    twice_K = 2 * np.maximum(kappa_K, _SMALL)
    exact_K = np.pi * (i0e(twice_K / 2) - np.exp(-twice_K)) / -np.expm1(-twice_K)
    return np.where(kappa_K < _SMALL, np.pi / 2 * (1 - kappa_K / 4), exact_K)


def pull(kappa_K: Float64, angle_K: Float64) -> Float64:
    """2κ (1 - cos θ), which follows χ² with two degrees of freedom for large κ: mean 2, median ln 4. (K,) -> (K,)."""
    found_K: Float64 = 4 * kappa_K * np.sin(angle_K / 2) ** 2
    return found_K


def negative_log_density(kappa_K: Float64, angle_K: Float64) -> Float64:
    """-ln p(θ), in a unit solid angle. (K,), (K,) -> (K,)."""
    found_K: Float64 = np.log(2 * np.pi) + _log_mean_exponential(kappa_K) + pull(kappa_K, angle_K) / 2
    return found_K


def drawn_angles_rad(kappa_K: Float64, random: np.random.Generator) -> Float64:
    """Angles drawn from the distributions. (K,) -> (K,).

    1 - cos θ = -ln(1 - u (1 - exp(-2κ))) / κ with u uniform in [0, 1): inversion of its cumulative distribution.
    """
    u_K = random.random(len(kappa_K))
    at_least = np.maximum(kappa_K, _SMALL)
    versine_K = np.where(kappa_K < _SMALL, 2 * u_K, -np.log1p(u_K * np.expm1(-2 * at_least)) / at_least)
    angle_K: Float64 = 2 * np.arcsin(np.sqrt(np.clip(versine_K / 2, 0.0, 1.0)))
    return angle_K


def _log_mean_exponential(kappa_K: Float64) -> Float64:
    """ln((1 - exp(-2κ)) / κ), which is ln 2 for κ = 0."""
    at_least = np.maximum(kappa_K, _SMALL)
    exact_K: Float64 = np.log(-np.expm1(-2 * at_least) / at_least)
    return np.where(kappa_K < _SMALL, np.log(2) - kappa_K, exact_K)
