"""Probability density of the time residual of a pulse: the Pandel function with jitter and noise, as a table.

The Pandel function (Ahrens et al., AMANDA, astro-ph/0407044, eq. 14-16) of light that travelled ``distance``: a Gamma
distribution of the delay behind light that doesn't scatter, of shape distance / λ and rate 1 / τ + c / (n λ_a). Here it
is convolved with a Gaussian, the jitter of the sensors' times, and mixed with a flat part, the noise.

N pulses in any shape.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.direction.ice import SCATTERING_M, SCATTERING_RATE_PER_NS

NOISE_SHARE = 0.05
"""Share of the flat part of the density."""
NOISE_WINDOW_NS = 3000.0

_SHAPES = 56
_SHAPE_MIN, _SHAPE_MAX = 0.03, 20.0
"""Range of distance / SCATTERING_M, 1 to 670 m; beyond it the density is that at its end."""
_RESIDUALS = 448
_RESIDUAL_MIN_NS, _RESIDUAL_MAX_NS = -400.0, 4000.0
"""Range of the residual; below it only noise is left, above it the density is that at its end."""
_SOFTENING_NS = 10.0
"""Residual at which the steps of the table begin to grow."""
_CELLS = 600
_LN_SHAPE_MIN, _LN_SHAPE_SPAN = math.log(_SHAPE_MIN * SCATTERING_M), math.log(_SHAPE_MAX / _SHAPE_MIN)


class LnDensity(NamedTuple):
    """ln density of residuals, with derivatives."""

    value: Tensor
    """ln (1/ns)."""
    by_ln_distance: Tensor
    by_residual: Tensor
    """1/ns."""


@lru_cache(maxsize=16)
def ln_density_table(jitter_ns: float) -> Tensor:
    """Table of the ln density and its derivatives by ln distance and residual, on the grid of ln_density().

    (1, 3, shapes, residuals) float32; ``jitter_ns``: standard deviation of the Gaussian.
    """
    shape_S = _SHAPE_MIN * np.exp(np.linspace(0, _LN_SHAPE_SPAN, _SHAPES))
    warped_R = np.linspace(_warped_scalar(_RESIDUAL_MIN_NS), _warped_scalar(_RESIDUAL_MAX_NS), _RESIDUALS)
    residual_R = _unwarped(warped_R)
    density_SR = np.stack([convolved_density(shape, residual_R, jitter_ns) for shape in shape_S])
    value_SR = np.log((1 - NOISE_SHARE) * density_SR + NOISE_SHARE / NOISE_WINDOW_NS)
    by_ln_distance_SR = np.gradient(value_SR, np.log(shape_S), axis=0)
    by_residual_SR = np.gradient(value_SR, residual_R, axis=1)
    # Beyond the table the value stays as it is.
    by_ln_distance_SR[[0, -1]] = 0
    by_residual_SR[:, [0, -1]] = 0
    return torch.from_numpy(np.stack([value_SR, by_ln_distance_SR, by_residual_SR])).float().unsqueeze(0)


def convolved_density(shape: float, residual_R: npt.NDArray[np.float64], jitter_ns: float) -> npt.NDArray[np.float64]:
    """Density of the delay by scattering plus a Gaussian of standard deviation ``jitter_ns``, 1/ns. (R,) -> (R,).

    Far from no delay the Gamma density is smooth: Gauss-Hermite quadrature. Near it, where it may be infinite
    (shape < 1), the sum over cells of their probability times the Gaussian around their mean delay.
    """
    from scipy import special  # a quarter of a second to import: only where a table is made

    density_R = np.empty(residual_R.shape)
    near_R = residual_R < 8 * jitter_ns
    edge_C = np.concatenate([[0.0], np.geomspace(1e-3, 17, _CELLS) * jitter_ns])
    probability_C = np.diff(special.gammainc(shape, SCATTERING_RATE_PER_NS * edge_C))
    moment_C = np.diff(special.gammainc(shape + 1, SCATTERING_RATE_PER_NS * edge_C)) * shape / SCATTERING_RATE_PER_NS
    middle_C = (edge_C[1:] + edge_C[:-1]) / 2
    mean_C = np.divide(moment_C, probability_C, out=middle_C, where=probability_C > 1e-300)
    scaled_RC = (residual_R[near_R, None] - mean_C) / jitter_ns
    density_R[near_R] = np.exp(-0.5 * scaled_RC**2) @ probability_C / (math.sqrt(2 * math.pi) * jitter_ns)
    node_N, weight_N = np.polynomial.hermite_e.hermegauss(12)
    delay_RN = residual_R[~near_R, None] + jitter_ns * node_N
    ln_gamma_RN = special.xlogy(shape - 1, delay_RN) - SCATTERING_RATE_PER_NS * delay_RN
    ln_norm = shape * math.log(SCATTERING_RATE_PER_NS) - special.gammaln(shape)
    density_R[~near_R] = np.exp(ln_gamma_RN + ln_norm) @ weight_N / math.sqrt(2 * math.pi)
    return density_R


def ln_density(table: Tensor, distance: Tensor, residual: Tensor) -> LnDensity:
    """ln density of ``residual`` ns of light that travelled ``distance`` m > 0, by interpolation. (N), (N) -> (N)."""
    row = (torch.log(distance) - _LN_SHAPE_MIN) * (2 / _LN_SHAPE_SPAN) - 1
    low, high = _warped_scalar(_RESIDUAL_MIN_NS), _warped_scalar(_RESIDUAL_MAX_NS)
    column = residual * (residual.abs() + _SOFTENING_NS).rsqrt() * (2 / (high - low)) - (high + low) / (high - low)
    place_1N2 = torch.stack([column, row], -1).view(1, -1, 1, 2)
    found_3N = F.grid_sample(table, place_1N2, padding_mode="border", align_corners=True).view(3, *distance.shape)
    return LnDensity(*found_3N)


def _warped_scalar(residual_ns: float) -> float:
    """Coordinate in which the table's columns are equidistant: steps that grow as the root of the residual."""
    return residual_ns / math.sqrt(abs(residual_ns) + _SOFTENING_NS)


def _unwarped(warped: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Residuals, ns, at these coordinates: x = w (|w| + √(w² + 4 s)) / 2 solves w = x / √(|x| + s)."""
    residual: npt.NDArray[np.float64] = warped * (np.abs(warped) + np.sqrt(warped**2 + 4 * _SOFTENING_NS)) / 2
    return residual
